// Attention once more, for Arm processors that have the dot product of bytes (dot_product.h). This
// file alone is compiled with that instruction set. Nothing of it may stand in for code that other
// processors run, so that no symbol is weak outside its namespace; a test looks.
#define HWY_COMPILE_ONLY_STATIC
#define VOLVELLE_BUILDS_DOT_PRODUCT
#define VOLVELLE_TARGET N_DOT_PRODUCT
#include "kernels/attention.cc"
