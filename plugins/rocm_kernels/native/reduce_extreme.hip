// The least and the most, and where they are.  Semantics: core's propolis/ops/reduce.py.
#include "propolis_reductions.h"

REDUCE_ALL(reduce_extreme, min, Min)
REDUCE_ALL(reduce_extreme, max, Max)
REDUCE_ALL(reduce_extreme, argmax, ArgMax)
REDUCE_ALL(reduce_extreme, argmin, ArgMin)
