"""hipRTC compiles kernels with the host's compiler, and says what is wrong with them."""

from __future__ import annotations


def test_errors_reach_the_log(sim):
    """A source that does not compile gives a log with the user's file name and line."""
    lines = sim.lines("""
        result, log, _ = compile('extern "C" __global__ void k(float* y) {\\n  y[0] = nope;\\n}')
        print(result)
        print(next(line for line in log.splitlines() if "error" in line))
    """)
    assert lines[0] == "HIPRTC_ERROR_COMPILATION"
    assert lines[1].startswith("test.hip:2:")
    assert "nope" in lines[1]


def test_headers(sim):
    """A program brings its headers, in folders too; an error in one names it."""
    lines = sim.lines("""
        source = '#include "ours/three.h"\\nextern "C" __global__ void k(int* y) { *y = THREE; }'
        result, log, code = compile(source, headers={"ours/three.h": "#define THREE 3"})
        y = alloc(4)
        print(result, log, Module(code).k(1, 1, ctypes.c_void_p(y)), download(y, 1, "i4")[0])
        result, log, _ = compile(source, headers={"ours/three.h": "#error not today"})
        print(result, log.splitlines()[-1] if "hipsim-" in log else "ours/three.h:1:" in log)
        print(compile(source)[0], compile(source, headers={"../x.h": ""})[0])
    """)
    assert lines == [
        "HIPRTC_SUCCESS  hipSuccess 3",
        "HIPRTC_ERROR_COMPILATION True",
        "HIPRTC_ERROR_COMPILATION HIPRTC_ERROR_INTERNAL_ERROR",
    ]


def test_options(sim):
    """Options of AMD's compiler are taken, other architectures and unknown options are not."""
    lines = sim.lines("""
        source = 'extern "C" __global__ void k(int* y) { *y = VALUE * 100 + PROPOLIS_WARP; }'
        y = alloc(4)
        for options in (
            ["-DVALUE=7", "--offload-arch=hipsim32", "-O3", "-std=c++17", "-ffp-contract=off"],
            ["-D", "VALUE=8", "-mcumode", "-fno-gpu-rdc", "-Wall"],
        ):
            result, log, code = compile(source, *options)
            Module(code).k(1, 1, ctypes.c_void_p(y))
            print(result, download(y, 1, "i4")[0])
        print(*compile(source, "--offload-arch=gfx1100")[:2])
        print(*compile(source, "-ffast-math")[:2])
        print(compile(source, "-DVALUE=1", "--gpu-architecture=hipsim64")[0])
    """)
    invalid = "HIPRTC_ERROR_INVALID_OPTION"
    assert lines == [
        "HIPRTC_SUCCESS 732",
        "HIPRTC_SUCCESS 832",
        f"{invalid} the host simulator compiles for hipsim32 and hipsim64, not for gfx1100",
        f"{invalid} the host simulator does not know the option -ffast-math",
        "HIPRTC_SUCCESS",
    ]


def test_kernels_made_by_macros_and_in_odd_places(sim):
    """Every kernel of a source is found, whatever made it, and nothing that only looks like one."""
    lines = sim.lines('''
        source = r"""
        #define UNARY(name, type, expression) \\
          extern "C" __global__ void unary_##name##_##type(type* y) { \\
            type x = *y; \\
            *y = expression; \\
          }
        UNARY(negate, float, -x)
        UNARY(twice, int, x + x)
        // __global__ void in_a_comment(int* y) {}
        const char* text = "__global__ void in_a_string(int* y) {}";
        const char* raw = R"(" __global__ void in_a_raw_string() {)";
        extern "C" __global__ void declared_only(int* y);
        extern "C" __global__ void __launch_bounds__(64, 2) bounded(int* y) {
          const char brace = '{';
          *y = brace == '{' ? 1'0 : 0;  /* } */
        }
        namespace inner {
        extern "C" __global__ __attribute__((noinline)) void nested(int* y) { *y = 4; }
        }
        struct __hipsim_global_like {};
        template <typename T> __global__ void never_instantiated(T* y) { *y = T::none; }
        __global__ void mangled(int* y) { *y = 5; }
        extern "C" __global__ void declared_only(int* y) { *y = 6; }
        """
        result, log, code = compile(source)
        print(result, log)
        m = Module(code)
        print(ok(hip.hipModuleGetFunctionCount(m.handle)))
        y = upload(np.full(1, 21, "i4"))
        for kernel in ("unary_twice_int", "bounded", "nested", "_Z7mangledPi", "declared_only"):
            getattr(m, kernel)(1, 1, ctypes.c_void_p(y))
            print(kernel, download(y, 1, "i4")[0])
        z = upload(np.full(1, 2, "f4"))
        m.unary_negate_float(1, 1, ctypes.c_void_p(z))
        print(download(z, 1)[0])
    ''')
    assert lines == [
        "HIPRTC_SUCCESS ",
        "6",
        "unary_twice_int 42",
        "bounded 10",
        "nested 4",
        "_Z7mangledPi 5",
        "declared_only 6",
        "-2.0",
    ]


def test_too_much_shared_memory(sim):
    """Static shared memory that no block has is an error of the compilation, as on hardware."""
    lines = sim.lines("""
        source = '''extern "C" __global__ void k(float* y) {
          __shared__ float big[16 * 1024 + 1];
          big[threadIdx.x] = *y;
          __syncthreads();
          *y = big[5];
        }'''
        result, log, _ = compile(source)
        print(result, log.strip())
    """)
    assert lines == [
        "HIPRTC_ERROR_COMPILATION error: k uses 65540 bytes of shared memory, a block has 65536"
    ]


def test_bounds_of_arrays(sim):
    """HIPSIM_BOUNDS compiles a check of each index of an array whose size is known."""
    code = """
        source = '''extern "C" __global__ void k(float* y, int i) {
          __shared__ float row[8];
          row[i] = 1.0f;
          __syncthreads();
          *y = row[0];
        }'''
        m = Module(compile(source)[2])
        m.k(1, 1, ctypes.c_void_p(alloc(4)), i32(8))
        print(name(hip.hipDeviceSynchronize()))
    """
    assert sim.lines(code, HIPSIM_BOUNDS=1) == ["hipErrorLaunchFailure"]


def test_numbers_are_ieee(sim):
    """Halves round to nearest even; subnormals, signed zeros and NaN survive; no fast math."""
    lines = sim.lines('''
        source = r"""
        extern "C" __global__ void k(const float* x, float* y, unsigned short* h, int n) {
          const int i = threadIdx.x;
          h[i] = hipsim_float_to_half(x[i]);
          y[i] = hipsim_half_to_float(h[i]);
        }
        extern "C" __global__ void add(float a, float b, float* y) { *y = (a + b) - a; }
        """
        x = np.array([0.1, -0.0, 65504, 65520, 1e-7, 5.96e-8, 2.98e-8, np.inf, 1 + 2**-11,
                      1 + 3 * 2**-11], np.float32)
        m = Module(compile(source)[2])
        dx, dy, dh = upload(x), alloc(x.nbytes), alloc(2 * x.size)
        m.k(1, x.size, *map(ctypes.c_void_p, (dx, dy, dh)), i32(x.size))
        with np.errstate(over="ignore"):
            want = x.astype(np.float16)
        print((download(dh, x.size, "u2") == want.view("u2")).all())
        print((download(dy, x.size) == want.astype("f4")).all())
        m.add(1, 1, f32(1e8), f32(1), ctypes.c_void_p(dy))
        print(download(dy, 1)[0])
    ''')
    assert lines == ["True", "True", "0.0"]


def test_compiling_again_gives_the_same_code(sim):
    """The code depends on the source and options alone: a cache may compare it."""
    lines = sim.lines("""
        source = 'extern "C" __global__ void k(float* y) { __syncthreads(); *y = 1; }'
        print(compile(source)[2] == compile(source)[2])
        major, minor = ok(hiprtc.hiprtcVersion())
        print(major, minor == ok(hiprtc.hiprtcVersion())[1])
    """)
    assert lines == ["True", "7 True"]


def test_no_compiler(sim):
    """Without a compiler the log says which was looked for, and how to name another."""
    lines = sim.lines(
        """
        result, log, _ = compile('extern "C" __global__ void k() {}')
        print(result, log)
        """,
        HIPSIM_CXX="no-such-compiler",
    )
    assert lines[0].startswith(
        "HIPRTC_ERROR_INTERNAL_ERROR cannot run the C++ compiler no-such-compiler (HIPSIM_CXX)"
    )


def test_programs_that_are_used_wrongly(sim):
    """Code before compiling, names after it, and destroyed programs are errors."""
    lines = sim.lines("""
        R = lambda result: result[0].name
        program = ok(hiprtc.hiprtcCreateProgram(b"", b"", 0, [], []))
        print(R(hiprtc.hiprtcGetCodeSize(program)))
        print(hiprtc.hiprtcCompileProgram(program, 0, [])[0].name)
        print(R(hiprtc.hiprtcAddNameExpression(program, b"x")))
        ok(hiprtc.hiprtcDestroyProgram(program.createRef()))
        print(R(hiprtc.hiprtcGetCodeSize(program)))
    """)
    assert lines == [
        "HIPRTC_ERROR_INVALID_PROGRAM",
        "HIPRTC_SUCCESS",
        "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        "HIPRTC_ERROR_INVALID_PROGRAM",
    ]
