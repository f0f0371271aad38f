// Sums and what is made of them.  Semantics: core's propolis/ops/reduce.py.
#include "propolis_reductions.h"

REDUCE_ALL(reduce, sum, Sum)
REDUCE_ALL(reduce, prod, Prod)
REDUCE_FLOATS(reduce, mean, Mean)
REDUCE_FLOATS(reduce, var, Var)
