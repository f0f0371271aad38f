// Products with weights in the block formats of 32.
#include "propolis_qmatmul.h"

QMATMUL(quantized_matmul, q4_0, Q4_0)
QMATMUL(quantized_matmul, q4_1, Q4_1)
QMATMUL(quantized_matmul, q5_0, Q5_0)
QMATMUL(quantized_matmul, q5_1, Q5_1)
QMATMUL(quantized_matmul, q8_0, Q8_0)
QMATMUL(quantized_matmul, q8_1, Q8_1)
QMATMUL(quantized_matmul, iq4_nl, IQ4_NL)
QMATMUL(quantized_matmul, mxfp4, MXFP4)
