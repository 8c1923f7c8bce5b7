"""The peers of the group-quantized matmul, each behind the same face: a function of the rows that gives a call.

A peer is made from a :class:`Problem`; for so many rows it gives a :class:`Call`, which multiplies by one set of
weights. ``numpy`` multiplies by weights that were dequantized beforehand, four bytes each. ``ort`` is ONNX Runtime's
MatMulNBits with f32 activations, ``ort i8`` rounds these to 8 bits. ``llama.cpp`` has its own quantization of the same
weights, Q8_0 or Q4_0, in groups of 32, and rounds activations to 8 bits; ``repacked`` is its interleaved layout.
``iree`` compiles the two statements for this CPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import polyq
from benchmarks.table import BODY, GROUP, flagship_text, random_weights
from polyq.affine.arrays import from_storage, random_arrays

__all__ = ["PEERS", "Call", "Peer", "Problem", "polyq_peer"]

COLD_BYTES = 100e6

#: multiplies by a set of weights, by its number; returns the result, rows times n
Call = Callable[[int], np.ndarray]
#: makes the call of a peer for so many rows
Peer = Callable[[int], Call]


class Problem:
    """Sets of weights that together exceed the caches, and activations."""

    def __init__(self, n: int, groups: int, bits: int, threads: int) -> None:
        self.n, self.groups, self.bits, self.threads = n, groups, bits, threads
        self.k = groups * GROUP
        self.spec = polyq.parse(flagship_text(f"u{bits}[{n}, {groups}, {GROUP}]", BODY))
        self.bytes = n * self.k * bits // 8 + 2 * 4 * n * groups
        self.sets = [self._weights(seed) for seed in range(int(COLD_BYTES / self.bytes) + 2)]

    def _weights(self, seed: int) -> dict[str, np.ndarray]:
        """Return codes as they are stored, scales, and zero points that are integers, which some peers need."""
        held = random_weights(self.spec, {"m": 1}, seed)
        zero = np.random.default_rng(seed).integers(0, 2**self.bits, held["z"].shape)
        return {**held, "z": zero.astype(np.float32)}

    def activations(self, m: int) -> np.ndarray:
        """Return ``x`` for m rows."""
        return random_arrays(self.spec, {"m": m}, 7)["x"]

    def floats(self, held: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return dequantized weights, n times k."""
        codes = from_storage(self.spec.tensor("w"), held["w"], (self.n, self.groups, GROUP))
        return ((codes.astype(np.float32) - held["z"][..., None]) * held["s"][..., None]).reshape(self.n, -1)


def polyq_peer(problem: Problem, mode: str) -> Peer:
    """Return bound kernels of one numerics mode."""
    kernel = polyq.build(problem.spec, numerics=mode, threads=problem.threads, constants=tuple(problem.sets[0]))
    layers = [kernel.bind(**held) for held in problem.sets]

    def of(m: int) -> Call:
        x = problem.activations(m)
        out = layers[0](x=x)
        return lambda i: layers[i](x=x, out=out)

    return of


def numpy_peer(problem: Problem) -> Peer:
    """Return numpy's product with weights in f32: two sets of them, since they are large.

    The threads of this process's BLAS are limited for good.
    """
    import threadpoolctl

    threadpoolctl.threadpool_limits(problem.threads)
    weights = [np.ascontiguousarray(problem.floats(held).T) for held in problem.sets[:2]]

    def of(m: int) -> Call:
        x = problem.activations(m).reshape(m, -1)
        return lambda i: x @ weights[i % 2]

    return of


# ---- ONNX Runtime
def ort_peer(problem: Problem, accuracy: int) -> Peer:
    """Return ONNX Runtime's MatMulNBits: ``accuracy`` 0 keeps the activations in f32, 4 rounds them to 8 bits."""
    sessions = [_session(problem, held, accuracy) for held in problem.sets]

    def of(m: int) -> Call:
        x = problem.activations(m).reshape(m, -1)
        return lambda i: sessions[i].run(None, {"x": x})[0]

    return of


def _session(problem: Problem, held: Mapping[str, np.ndarray], accuracy: int) -> Any:
    """Return a session of one op; its zero points are integers, packed as the codes are."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    zero = held["z"].astype(np.uint8)
    if problem.bits == 4:
        zero = np.pad(zero, ((0, 0), (0, zero.shape[1] % 2)))
        zero = zero[:, 0::2] | zero[:, 1::2] << 4
    codes = held["w"].reshape(problem.n, problem.groups, -1)
    constants = {"w": codes, "s": held["s"].reshape(-1), "z": zero.reshape(-1)}
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft",
        K=problem.k, N=problem.n, bits=problem.bits, block_size=GROUP, accuracy_level=accuracy,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", problem.k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", problem.n])],
        [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = problem.threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would run beside the others
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


# ---- IREE
_IREE = """
func.func @layer(%w: tensor<{n}x{g}x{j}xi8>, %x: tensor<{m}x{g}x{j}xf32>, %s: tensor<{n}x{g}xf32>,
                 %z: tensor<{n}x{g}xf32>) -> tensor<{m}x{n}xf32> {{
  %none = tensor.empty() : tensor<{n}x{g}x{j}xf32>
  %d = linalg.generic {{
    indexing_maps = [affine_map<(n, g, j) -> (n, g, j)>, affine_map<(n, g, j) -> (n, g)>,
                     affine_map<(n, g, j) -> (n, g)>, affine_map<(n, g, j) -> (n, g, j)>],
    iterator_types = ["parallel", "parallel", "parallel"]
  }} ins(%w, %z, %s : tensor<{n}x{g}x{j}xi8>, tensor<{n}x{g}xf32>, tensor<{n}x{g}xf32>)
     outs(%none : tensor<{n}x{g}x{j}xf32>) {{
  ^bb0(%code: i8, %zero: f32, %scale: f32, %old: f32):
    %wide = arith.extui %code : i8 to i32
    %float = arith.uitofp %wide : i32 to f32
    %shifted = arith.subf %float, %zero : f32
    %scaled = arith.mulf %shifted, %scale : f32
    linalg.yield %scaled : f32
  }} -> tensor<{n}x{g}x{j}xf32>
  %start = arith.constant dense<0.0> : tensor<{m}x{n}xf32>
  %y = linalg.generic {{
    indexing_maps = [affine_map<(m, n, g, j) -> (m, g, j)>, affine_map<(m, n, g, j) -> (n, g, j)>,
                     affine_map<(m, n, g, j) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction", "reduction"]
  }} ins(%x, %d : tensor<{m}x{g}x{j}xf32>, tensor<{n}x{g}x{j}xf32>) outs(%start : tensor<{m}x{n}xf32>) {{
  ^bb0(%a: f32, %b: f32, %sum: f32):
    %product = arith.mulf %a, %b : f32
    %more = arith.addf %sum, %product : f32
    linalg.yield %more : f32
  }} -> tensor<{m}x{n}xf32>
  return %y : tensor<{m}x{n}xf32>
}}
"""


def iree_peer(problem: Problem) -> Peer:
    """Return IREE's kernel, compiled anew for each number of rows, with a byte for each code."""
    import iree.compiler
    import iree.runtime as runtime

    config = runtime.Config("local-sync" if problem.threads == 1 else "local-task")

    def device(a: np.ndarray) -> Any:
        return runtime.asdevicearray(config.device, np.ascontiguousarray(a))

    def weights(held: Mapping[str, np.ndarray]) -> tuple[Any, Any, Any]:
        codes = from_storage(problem.spec.tensor("w"), held["w"], (problem.n, problem.groups, GROUP))
        return device(codes.astype(np.uint8).view(np.int8)), device(held["s"]), device(held["z"])

    sets = [weights(held) for held in problem.sets]

    def of(m: int) -> Call:
        code = iree.compiler.compile_str(
            _IREE.format(m=m, n=problem.n, g=problem.groups, j=GROUP), target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"],
        )  # fmt: skip
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, code))
        layer, x = context.modules.module["layer"], device(problem.activations(m))
        return lambda i: layer(sets[i][0], x, sets[i][1], sets[i][2]).to_host()

    return of


# ---- llama.cpp
class _Context(ctypes.Structure):
    """``ggml_init_params``: how much memory a context has for the descriptions of its tensors, not for their data."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


_P, _I, _L, _Z = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
#: what a product needs of ggml: the type of the result, then those of the arguments
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ggml_init": (_P, _Context),
    "ggml_new_tensor_2d": (_P, _P, _I, _L, _L),
    "ggml_mul_mat": (_P, _P, _P, _P),
    "ggml_new_graph": (_P, _P),
    "ggml_build_forward_expand": (None, _P, _P),
    "ggml_row_size": (_Z, _I, _L),
    "ggml_quantize_chunk": (_Z, _I, _P, _P, _L, _L, _L, _P),
    "ggml_backend_cpu_init": (_P,),
    "ggml_backend_cpu_set_n_threads": (None, _P, _I),
    "ggml_backend_cpu_buffer_type": (_P,),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_P, _P, _P),
    "ggml_backend_tensor_set": (None, _P, _P, _Z, _Z),
    "ggml_backend_tensor_get": (None, _P, _P, _Z, _Z),
    "ggml_backend_graph_compute": (_I, _P, _P),
    "ggml_backend_get_device": (_P, _P),
    "ggml_backend_dev_backend_reg": (_P, _P),
    "ggml_backend_reg_get_proc_address": (_P, _P, ctypes.c_char_p),
}


class _Ggml:
    """The functions of llama.cpp's tensor library that a product needs, from the libraries in its Python package."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("llama_cpp")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("No module named 'llama_cpp'")
        folder = Path(found.origin).parent / "lib"
        names = ("libggml-base.so", "libggml-cpu.so", "libggml.so")
        libraries = [ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL) for name in names]
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = next(getattr(library, name) for library in libraries if hasattr(library, name))
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)  # what `__init__` did not set

    def context(self) -> int:
        return self.init(_Context(1 << 26, None, True))

    def repacked_type(self, backend: int) -> int:
        """Return the type of buffers whose weights are interleaved."""
        registry = self.backend_dev_backend_reg(self.backend_get_device(backend))
        address = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        extra = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(self.backend_get_device(backend))
        types = ctypes.cast(extra, ctypes.POINTER(ctypes.c_void_p))
        if not types or not types[0]:
            raise RuntimeError("this build has no repacked layout")
        return types[0]


def llama_peer(problem: Problem, repacked: bool) -> Peer:
    """Return llama.cpp's product with the dequantized weights in its own format."""
    if repacked and problem.bits == 8:
        raise RuntimeError("Q8_0 has no repacked layout on this CPU")
    g = _Ggml()
    backend = g.backend_cpu_init()
    g.backend_cpu_set_n_threads(backend, problem.threads)
    kind = {8: 8, 4: 2}[problem.bits]  # GGML_TYPE_Q8_0 and GGML_TYPE_Q4_0
    context = g.context()
    tensors = [g.new_tensor_2d(context, kind, problem.k, problem.n) for _ in problem.sets]
    buffers = g.repacked_type(backend) if repacked else g.backend_cpu_buffer_type()
    g.backend_alloc_ctx_tensors_from_buft(context, buffers)
    data = np.empty(g.row_size(kind, problem.k) * problem.n, np.uint8)
    for tensor, held in zip(tensors, problem.sets, strict=True):
        floats = np.ascontiguousarray(problem.floats(held))
        g.quantize_chunk(kind, floats.ctypes.data, data.ctypes.data, 0, problem.n, problem.k, None)
        g.backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
    return partial(_llama_call, g, backend, tensors, problem)


def _llama_call(g: _Ggml, backend: int, tensors: list[int], problem: Problem, m: int) -> Call:
    context, graphs = g.context(), list[int]()
    x = g.new_tensor_2d(context, 0, problem.k, m)  # GGML_TYPE_F32
    products = [g.mul_mat(context, tensor, x) for tensor in tensors]
    for product in products:
        graphs.append(g.new_graph(context))
        g.build_forward_expand(graphs[-1], product)
    g.backend_alloc_ctx_tensors_from_buft(context, g.backend_cpu_buffer_type())
    given = problem.activations(m).reshape(m, -1)
    g.backend_tensor_set(x, given.ctypes.data, 0, given.nbytes)
    out = np.empty((m, problem.n), np.float32)

    def call(i: int) -> np.ndarray:
        if g.backend_graph_compute(backend, graphs[i]):
            raise RuntimeError("llama.cpp could not compute the product")
        g.backend_tensor_get(products[i], out.ctypes.data, 0, out.nbytes)
        return out

    return call


#: how each peer is made
PEERS: dict[str, Callable[[Problem], Peer]] = {
    "numpy": numpy_peer,
    "ort": partial(ort_peer, accuracy=0),
    "ort i8": partial(ort_peer, accuracy=4),
    "llama.cpp": partial(llama_peer, repacked=False),
    "llama.cpp repacked": partial(llama_peer, repacked=True),
    "iree": iree_peer,
}
