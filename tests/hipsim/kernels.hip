// Kernels of the simulator's tests: some right, most wrong in one way each.

extern "C" {

__global__ void fill(float* y, int n, float value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = value;
}

__global__ void add_one(float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += 1.0f;
}

// Four floats at once, from the element `start` on.
typedef float float_x4 __attribute__((vector_size(16)));
__global__ void copy_packs(float* y, const float* x, int to, int from) {
  *reinterpret_cast<float_x4*>(y + to) = *reinterpret_cast<const float_x4*>(x + from);
}

__global__ void copy(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = x[i];
}

// Where each thread of a three-dimensional launch is.
__global__ void where(int* y) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  y[block * threads + thread] = threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z +
                                1000000 * blockIdx.x + 10000000 * blockIdx.y +
                                100000000 * blockIdx.z;
}

// The sum of a block's values through shuffles, shared memory and a barrier.
__global__ void sum(const float* x, float* y, int n) {
  __shared__ float partial[32];
  float value = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) value += x[i];
  for (int step = warpSize / 2; step > 0; step /= 2) value += __shfl_xor(value, step);
  if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = value;
  __syncthreads();
  if (threadIdx.x < warpSize) {
    value = threadIdx.x < blockDim.x / warpSize ? partial[threadIdx.x] : 0.0f;
    for (int step = warpSize / 2; step > 0; step /= 2) value += __shfl_down(value, step);
    if (threadIdx.x == 0) *y = value;
  }
}

// The same without the barrier: right only by the luck of the threads' order.
__global__ void sum_without_barrier(const float* x, float* y) {
  __shared__ float partial[64];
  partial[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 0) {
    float value = 0.0f;
    for (int i = 0; i < 64; ++i) value += partial[i];
    *y = value;
  }
}

__global__ void shuffles(int* y) {
  const int lane = threadIdx.x % warpSize;
  int* out = y + threadIdx.x * 8;
  out[0] = __shfl(lane, 5);
  out[1] = __shfl_xor(lane, 3);
  out[2] = __shfl_down(lane, 2);
  out[3] = __shfl_up(lane, 2);
  out[4] = __shfl_xor(lane, 1, 16);
  out[5] = __popcll(__ballot(lane % 3 == 0));
  out[6] = __any(lane == 7) * 2 + __all(lane >= 0);
  const double wide = __shfl(static_cast<double>(lane) + 0.5, 9);
  out[7] = static_cast<int>(wide * 2.0);
}

__global__ void dynamic_reverse(const float* x, float* y) {
  PROPOLIS_DYNAMIC_SHARED(float, row);
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}

__global__ void atomics(float* f, double* d, int* i, unsigned* u, unsigned long long* l) {
  const int id = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(f, 1.0f);
  atomicAdd(d, 1.0);
  atomicAdd(i, 1);
  atomicMax(u, static_cast<unsigned>(id));
  atomicAdd(l, 1ull);
  int seen = i[1];
  while (true) {
    const int old = atomicCAS(&i[1], seen, seen + 2);
    if (old == seen) break;
    seen = old;
  }
  atomicMin(&i[2], -id);
}

struct Strided {
  long long shape[2];
  long long strides[2];
  int rank;
  int pad;
};

__global__ void mixed(char a, float* y, short b, double c, Strided s, int d) {
  y[0] = a;
  y[1] = b;
  y[2] = static_cast<float>(c);
  y[3] = static_cast<float>(s.strides[1]);
  y[4] = static_cast<float>(s.rank);
  y[5] = static_cast<float>(d);
}

__global__ void nothing() {}

__global__ void slow(float* y, int n) {
  float value = *y;
  for (int i = 0; i < n; ++i) value = value * 0.999f + 1.0f;
  *y = value;
}

// ---- wrong ones ---------------------------------------------------------------------

__global__ void write_behind(float* y, int n, int behind) {
  if (threadIdx.x == 0) y[n + behind] = 1.0f;
}
__global__ void read_at(const float* x, long long index, float* y) { *y = x[index]; }
__global__ void read_uninitialised_shared(float* y, int written) {
  __shared__ float row[8];
  if (static_cast<int>(threadIdx.x) < written) row[threadIdx.x] = 1.0f;
  y[threadIdx.x] = row[threadIdx.x];
}
__global__ void read_uninitialised_dynamic(float* y) {
  PROPOLIS_DYNAMIC_SHARED(float, row);
  y[threadIdx.x] = row[threadIdx.x];
}
__global__ void write_behind_dynamic(int index) {
  PROPOLIS_DYNAMIC_SHARED(float, row);
  row[index] = 1.0f;
}
__global__ void leave_before_barrier(float* y, int n) {
  if (static_cast<int>(threadIdx.x) >= n) return;
  __syncthreads();
  y[threadIdx.x] = 1.0f;
}
__global__ void two_barriers(float* y) {
  if (threadIdx.x % 2 == 0) {
    __syncthreads();
    y[0] = 1.0f;
  } else {
    __syncthreads();
    y[1] = 1.0f;
  }
}
__global__ void leave_before_shuffle(float* y, int n) {
  if (static_cast<int>(threadIdx.x) >= n) return;
  y[threadIdx.x] = __shfl_xor(1.0f, 16);
}
// Half of the warp exchanges among itself while the other half is at the barrier: defined.
__global__ void half_warp_shuffle(int* y) {
  int value = threadIdx.x;
  if (threadIdx.x < 16) value = __shfl_xor(value, 1);
  __syncthreads();
  y[threadIdx.x] = value;
}
__global__ void divide(int* y, int by) { *y = 7 / by; }
__global__ void trap() { __builtin_trap(); }
__global__ void deep(float* y, int n) {
  volatile char big[100000];
  big[n] = 1;
  *y = big[n];
}
__global__ void forever(volatile int* y) {
  while (*y == 0) {
  }
}
__global__ void static_shared(float* y) {
  __shared__ float big[15 * 1024];
  big[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = big[threadIdx.x];
}

}  // extern "C"

template <class T>
__global__ void doubled(T* y) {
  y[threadIdx.x] = y[threadIdx.x] + y[threadIdx.x];
}
