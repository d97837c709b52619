// Groups whose inputs lie scattered over a linear's columns, as GPTQ's desc_act leaves them, fit no
// blocks. Where another linear makes those inputs one by one, both can be put in an order in which
// groups are whole: the rows of that one and the columns of this.

#ifndef VOLVELLE_CONVERTER_GROUP_ORDER_H_
#define VOLVELLE_CONVERTER_GROUP_ORDER_H_

#include "converter/recipe.h"
#include "converter/sources/tensor_source.h"

namespace volvelle {

// Does so with the inner rows of every feed-forward that needs it; the model computes the same.
void gather_groups(const TensorSource& source, recipe::Model& model);

}  // namespace volvelle

#endif  // VOLVELLE_CONVERTER_GROUP_ORDER_H_
