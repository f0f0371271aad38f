// Products with weights in the block formats of 256.
#include "propolis_qmatmul.h"

QMATMUL(quantized_matmul_k, q2_k, Q2_K)
QMATMUL(quantized_matmul_k, q3_k, Q3_K)
QMATMUL(quantized_matmul_k, q4_k, Q4_K)
QMATMUL(quantized_matmul_k, q5_k, Q5_K)
QMATMUL(quantized_matmul_k, q6_k, Q6_K)
QMATMUL(quantized_matmul_k, q8_k, Q8_K)
QMATMUL(quantized_matmul_k, iq4_xs, IQ4_XS)
QMATMUL(quantized_matmul_k, tq1_0, TQ1_0)
QMATMUL(quantized_matmul_k, tq2_0, TQ2_0)
