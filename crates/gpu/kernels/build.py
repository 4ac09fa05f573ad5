"""Compiles kernels.cu, training.cu, attention.cu and functions.cu to compressed PTX, which the crate contains.

Usage: pip install nvidia-cuda-nvrtc-cu12==12.4.127 nvidia-cuda-runtime-cu12==12.4.127
       python crates/gpu/kernels/build.py [DIRECTORY OF THE PACKAGE nvidia]

Needs no GPU. The first line of each file has the checksum of common.cuh and its source, which a test compares.
"""

import ctypes
import gzip
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def check(library, result, what):
    if result:
        raise SystemExit(f"{what}: error {result}")


def compile_file(library, include, name, extra, capability=75):
    source = (HERE / f"{name}.cu").read_bytes()
    program = ctypes.c_void_p()
    check(library, library.nvrtcCreateProgram(ctypes.byref(program), source, f"{name}.cu".encode(), 0, None, None),
          "nvrtcCreateProgram")
    options = [f"--gpu-architecture=compute_{capability}".encode(), b"--std=c++17", b"-I" + str(include).encode(),
               b"-I" + str(HERE).encode(), *extra]
    result = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    if log.value:
        print(log.value.decode())
    check(library, result, name)
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, ptx)
    lines = [line for line in ptx.value.decode().splitlines() if line.strip() and not line.startswith("//")]
    digest = f"{zlib.crc32((HERE / 'common.cuh').read_bytes() + source):08x}"
    text = "\n".join([f"// {name}.cu {digest}", *lines]) + "\n"
    (HERE / f"{name}.ptx.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main():
    if len(sys.argv) > 1:
        root = Path(sys.argv[1])
    else:
        import nvidia

        root = Path(nvidia.__path__[0])
    library = ctypes.CDLL(str(next((root / "cuda_nvrtc" / "lib").glob("libnvrtc.so.*"))))
    include = root / "cuda_runtime" / "include"
    compile_file(library, include, "kernels", [])
    compile_file(library, include, "training", [])
    compile_file(library, include, "attention", [], capability=80)
    compile_file(library, include, "functions", [b"--relocatable-device-code=true"])


main()
