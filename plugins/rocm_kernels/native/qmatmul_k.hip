// Products with weights in the block formats of 256.
#include "propolis_qmatmul.h"

QMATMUL(qmatmul_k, q2_k, Q2_K)
QMATMUL(qmatmul_k, q3_k, Q3_K)
QMATMUL(qmatmul_k, q4_k, Q4_K)
QMATMUL(qmatmul_k, q5_k, Q5_K)
QMATMUL(qmatmul_k, q6_k, Q6_K)
QMATMUL(qmatmul_k, q8_k, Q8_K)
