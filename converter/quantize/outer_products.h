// Sums of outer products, of which everything dense in rounding with compensation is made: second
// moments of inputs, their factorisation, and what rounding one block asks of all later ones.

#ifndef VOLVELLE_CONVERTER_QUANTIZE_OUTER_PRODUCTS_H_
#define VOLVELLE_CONVERTER_QUANTIZE_OUTER_PRODUCTS_H_

#include <cstddef>

namespace volvelle {

// A matrix whose rows are `stride` elements apart.
template <typename Float>
struct Strided {
  Float* data = nullptr;
  size_t stride = 0;

  Strided from(size_t row, size_t column) const { return {data + row * stride + column, stride}; }
};

// c[i, j] += sum over k < depth of a[k, i] * b[k, j], for i < rows and j < columns. Each element is
// one sum in the order of k, so that no division of rows and columns changes it.
void add_outer_products(Strided<const float> a, Strided<const float> b, size_t depth, size_t rows,
                        size_t columns, Strided<float> c);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_QUANTIZE_OUTER_PRODUCTS_H_
