// The least and the most, and where they are.  Semantics: core's propolis/ops/reduce.py.
#include "propolis_reductions.h"

REDUCE_ALL(extreme, min, Min)
REDUCE_ALL(extreme, max, Max)
REDUCE_ALL(extreme, argmax, ArgMax)
REDUCE_ALL(extreme, argmin, ArgMin)
