//! [`Blas`]: matrix products by NVIDIA's cuBLASLt, which is loaded at run time.
//!
//! Numbers are those of `cublasLt.h` and `library_types.h`. The library is column-major: it gets the
//! transposed problem, in which the operands change places.

use super::library::{Handle, Loaded, Plans, measure, open};
use super::lock;
use crate::{StreamMemory, backend::Address};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

const LIBRARIES: &[&str] = &[
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "libcublasLt.so.11",
];
const WORKSPACE: usize = 32 << 20;
/// Algorithms that are tried at the first product of a kind.
const MAX_TRIED: usize = 8;

const DESC_TRANS_A: c_int = 3;
const DESC_TRANS_B: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS: c_int = 8;
const LAYOUT_BATCH: c_int = 5;
const LAYOUT_STRIDE: c_int = 6;
const PREFERENCE_WORKSPACE: c_int = 1;

/// What a product does to its result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// Adds a bias to each row.
    Bias,
    /// Adds a bias to each row, and sets what is negative to zero.
    BiasRelu,
}

/// A kind of matrix product, `y[b] = x[b] w[b]` with row-major matrices.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Gemm {
    /// Float, bfloat16 or half.
    pub dtype: DType,
    /// Rows of `y`.
    pub m: usize,
    /// Columns of `y`.
    pub n: usize,
    /// Terms of each sum.
    pub k: usize,
    /// Whether `x` is `[k, m]`.
    pub transpose_x: bool,
    /// Whether `w` is `[n, k]`.
    pub transpose_w: bool,
    /// Products.
    pub batch: usize,
    /// Elements from one `x` to the next; 0 if they are the same.
    pub stride_x: usize,
    /// Elements from one `w` to the next; 0 if they are the same.
    pub stride_w: usize,
    /// Whether a matrix is added to the product.
    pub has_side: bool,
    /// What follows.
    pub epilogue: Epilogue,
    /// Whether float products are computed in TF32.
    pub tf32: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

super::library::functions! {
    Functions {
        create = b"cublasLtCreate\0" (*mut Handle);
        destroy = b"cublasLtDestroy\0" (Handle);
        desc_create = b"cublasLtMatmulDescCreate\0" (*mut Handle, c_int, c_int);
        desc_set = b"cublasLtMatmulDescSetAttribute\0" (Handle, c_int, *const c_void, usize);
        desc_destroy = b"cublasLtMatmulDescDestroy\0" (Handle);
        layout_create = b"cublasLtMatrixLayoutCreate\0" (*mut Handle, c_int, u64, u64, i64);
        layout_set = b"cublasLtMatrixLayoutSetAttribute\0" (Handle, c_int, *const c_void, usize);
        layout_destroy = b"cublasLtMatrixLayoutDestroy\0" (Handle);
        preference_create = b"cublasLtMatmulPreferenceCreate\0" (*mut Handle);
        preference_set = b"cublasLtMatmulPreferenceSetAttribute\0" (Handle, c_int, *const c_void, usize);
        preference_destroy = b"cublasLtMatmulPreferenceDestroy\0" (Handle);
        heuristic = b"cublasLtMatmulAlgoGetHeuristic\0" (Handle, Handle, Handle, Handle, Handle, Handle, Handle,
                                                         c_int, *mut Heuristic, *mut c_int);
        matmul = b"cublasLtMatmul\0" (Handle, Handle, *const c_void, u64, Handle, u64, Handle, *const c_void, u64,
                                      Handle, u64, Handle, *const Heuristic, u64, usize, Handle);
    }
}

/// cuBLASLt for the streams of one device.
pub struct Blas {
    library: Arc<Loaded<Functions>>,
    handle: Handle,
    workspace: Tensor,
    plans: Plans<Gemm, Plan>,
}

/// A prepared product.
struct Plan {
    library: Arc<Loaded<Functions>>,
    desc: Handle,
    /// Of the first and the second operand, and the result, as the library sees them.
    layouts: [Handle; 3],
    algorithm: Mutex<Heuristic>,
    has_side: bool,
    /// The bias is an attribute of `desc`, so that one product at a time is enqueued.
    enqueue: Mutex<()>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        let f = &self.library.functions;
        // SAFETY: the handles were created by the library, and nothing uses them any more; zero is none.
        unsafe {
            for layout in self.layouts.into_iter().filter(|l| *l != 0) {
                (f.layout_destroy)(layout);
            }
            if self.desc != 0 {
                (f.desc_destroy)(self.desc);
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle is the library's, and nothing uses it any more.
        unsafe { (self.library.functions.destroy)(self.handle) };
    }
}

fn check(result: c_int, what: &str) -> Result<()> {
    match result {
        0 => Ok(()),
        15 => Err(unimplemented_error!("{what}: cuBLASLt has no such product")),
        _ => Err(internal!("{what}: error {result} of cuBLASLt")),
    }
}

/// `cudaDataType_t` of a dtype.
fn data_type(dtype: DType) -> Result<c_int> {
    match dtype {
        DType::Float => Ok(0),
        DType::Half => Ok(2),
        DType::Bfloat16 => Ok(14),
        _ => Err(unimplemented_error!(
            "there are no {dtype} matrix products on GPUs"
        )),
    }
}

impl Blas {
    /// Loads the library for a device whose context is current.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if there is no library; RESOURCE_EXHAUSTED if there is too little memory.
    pub fn open(memory: &StreamMemory) -> Result<Blas> {
        let library = open(LIBRARIES)?;
        // SAFETY: the functions have the types that `cublasLt.h` declares.
        let functions = unsafe { Functions::find(&library) }?;
        let workspace = Shape::from([WORKSPACE / 4]);
        let workspace = memory.allocate_tensor(DType::Float, workspace)?;
        let mut handle = 0;
        // SAFETY: writes one handle.
        let created = unsafe { (functions.create)(&raw mut handle) };
        check(created, "cublasLtCreate")?;
        Ok(Blas {
            library: Arc::new(Loaded {
                functions,
                _library: library,
            }),
            handle,
            workspace,
            plans: Plans::default(),
        })
    }

    /// Enqueues a product on the computing stream; `bias` belongs to an epilogue that has one, and `side` is
    /// added, if any.
    ///
    /// # Errors
    /// INTERNAL if a tensor is not on the device, or smaller than the product needs; UNIMPLEMENTED if the library
    /// has no such product.
    pub fn multiply(
        &self,
        memory: &StreamMemory,
        gemm: &Gemm,
        [x, w, y]: [&Tensor; 3],
        bias: Option<&Tensor>,
        side: Option<&Tensor>,
    ) -> Result<()> {
        check_sizes(gemm, [x, w, y], bias, side)?;
        let at = |t: &Tensor| memory.span(t).map(|span| span.address);
        let bias = bias.map_or(Ok(Address(0)), at)?;
        let addresses = [at(x)?, at(w)?, at(side.unwrap_or(y))?, at(y)?, bias];
        let plan = self.plans.of(gemm, || self.plan(memory, gemm, addresses))?;
        let algorithm = *lock(&plan.algorithm);
        self.enqueue(memory, &plan, &algorithm, addresses)
    }

    fn enqueue(
        &self,
        memory: &StreamMemory,
        plan: &Plan,
        algorithm: &Heuristic,
        [x, w, side, y, bias]: [Address; 5],
    ) -> Result<()> {
        let (f, stream) = (&self.library.functions, memory.compute().raw().0);
        let (one, add) = (1.0f32, if plan.has_side { 1.0f32 } else { 0.0 });
        let _one = lock(&plan.enqueue);
        if bias != Address(0) {
            let value = (&raw const bias.0).cast();
            // SAFETY: the attribute is an address, which is copied.
            let set = unsafe { (f.desc_set)(plan.desc, DESC_BIAS, value, 8) };
            check(set, "cublasLtMatmulDescSetAttribute")?;
        }
        let [first, second, result] = plan.layouts;
        let workspace = memory.span(&self.workspace)?;
        // SAFETY: the handles are the library's; `check_sizes` compared the layouts with the memory, all of
        // which notes the computing stream; the factors are read before the call returns.
        let enqueued = unsafe {
            (f.matmul)(
                self.handle,
                plan.desc,
                (&raw const one).cast(),
                w.0,
                first,
                x.0,
                second,
                (&raw const add).cast(),
                side.0,
                result,
                y.0,
                result,
                algorithm,
                workspace.address.0,
                workspace.len,
                stream,
            )
        };
        memory.compute().note_op();
        check(enqueued, "cublasLtMatmul")
    }

    /// Prepares a product, and picks the fastest of the algorithms that the library proposes.
    fn plan(&self, memory: &StreamMemory, gemm: &Gemm, addresses: [Address; 5]) -> Result<Plan> {
        let f = &self.library.functions;
        let kind = data_type(gemm.dtype)?;
        // CUBLAS_COMPUTE_32F_FAST_TF32 or CUBLAS_COMPUTE_32F.
        let compute = if gemm.tf32 && kind == 0 { 77 } else { 68 };
        let mut plan = Plan {
            library: self.library.clone(),
            desc: 0,
            layouts: [0; 3],
            algorithm: Mutex::new(Heuristic {
                algorithm: [0; 8],
                workspace: 0,
                state: 0,
                waves: 0.0,
                reserved: [0; 4],
            }),
            has_side: gemm.has_side,
            enqueue: Mutex::default(),
        };
        // SAFETY: writes one handle.
        let created = unsafe { (f.desc_create)(&raw mut plan.desc, compute, 0) };
        check(created, "cublasLtMatmulDescCreate")?;
        let epilogue = match gemm.epilogue {
            Epilogue::None => 1,
            Epilogue::Bias => 4,
            Epilogue::BiasRelu => 6,
        };
        let attributes = [
            (DESC_TRANS_A, c_int::from(gemm.transpose_w)),
            (DESC_TRANS_B, c_int::from(gemm.transpose_x)),
            (DESC_EPILOGUE, epilogue),
        ];
        for (attribute, value) in attributes {
            // SAFETY: the attribute is an `int`, which is copied.
            let set = unsafe { (f.desc_set)(plan.desc, attribute, (&raw const value).cast(), 4) };
            check(set, "cublasLtMatmulDescSetAttribute")?;
        }
        let sides = [
            (gemm.n, gemm.k, gemm.transpose_w, gemm.stride_w),
            (gemm.k, gemm.m, gemm.transpose_x, gemm.stride_x),
            (gemm.n, gemm.m, false, gemm.n * gemm.m),
        ];
        for (layout, (rows, columns, transposed, stride)) in plan.layouts.iter_mut().zip(sides) {
            let (rows, columns) = if transposed {
                (columns, rows)
            } else {
                (rows, columns)
            };
            // SAFETY: writes one handle.
            let created = unsafe {
                (f.layout_create)(
                    layout,
                    kind,
                    rows as u64,
                    columns as u64,
                    rows.max(1) as i64,
                )
            };
            check(created, "cublasLtMatrixLayoutCreate")?;
            let (batch, stride) = (gemm.batch as c_int, stride as i64);
            // SAFETY: the attributes are an `int` and an `int64_t`, which are copied.
            unsafe {
                check(
                    (f.layout_set)(*layout, LAYOUT_BATCH, (&raw const batch).cast(), 4),
                    "batch",
                )?;
                check(
                    (f.layout_set)(*layout, LAYOUT_STRIDE, (&raw const stride).cast(), 8),
                    "stride",
                )?;
            }
        }
        self.choose(memory, &plan, addresses)?;
        Ok(plan)
    }

    fn choose(&self, memory: &StreamMemory, plan: &Plan, addresses: [Address; 5]) -> Result<()> {
        let f = &self.library.functions;
        let mut found = [*lock(&plan.algorithm); MAX_TRIED];
        let (mut preference, mut n) = (0, 0);
        let [a, b, c] = plan.layouts;
        // SAFETY: writes a handle, then at most as many results as there is room for; the attribute is a size.
        let asked = unsafe {
            check(
                (f.preference_create)(&raw mut preference),
                "cublasLtMatmulPreferenceCreate",
            )?;
            let size: usize = WORKSPACE;
            let size = (&raw const size).cast();
            (f.preference_set)(preference, PREFERENCE_WORKSPACE, size, 8);
            let max = MAX_TRIED as c_int;
            let results = found.as_mut_ptr();
            let asked = (f.heuristic)(
                self.handle,
                plan.desc,
                a,
                b,
                c,
                c,
                preference,
                max,
                results,
                &raw mut n,
            );
            (f.preference_destroy)(preference);
            asked
        };
        check(asked, "cublasLtMatmulAlgoGetHeuristic")?;
        let mut best: Option<(u128, Heuristic)> = None;
        for candidate in found
            .iter()
            .take(n.max(0) as usize)
            .filter(|c| c.state == 0)
        {
            let time = measure(memory, || self.enqueue(memory, plan, candidate, addresses));
            if let Ok(time) = time
                && best.as_ref().is_none_or(|(least, _)| time < *least)
            {
                best = Some((time, *candidate));
            }
        }
        let (_, best) = best.ok_or_else(|| unimplemented_error!("cuBLASLt has no such product"))?;
        *lock(&plan.algorithm) = best;
        Ok(())
    }
}

fn check_sizes(
    gemm: &Gemm,
    [x, w, y]: [&Tensor; 3],
    bias: Option<&Tensor>,
    side: Option<&Tensor>,
) -> Result<()> {
    let last = gemm.batch.saturating_sub(1);
    let needs = [
        (x, gemm.m * gemm.k + last * gemm.stride_x),
        (w, gemm.k * gemm.n + last * gemm.stride_w),
        (y, gemm.m * gemm.n * gemm.batch),
        (side.unwrap_or(y), gemm.m * gemm.n * gemm.batch),
    ];
    let has_bias = gemm.epilogue != Epilogue::None;
    let fits = needs
        .iter()
        .all(|(t, n)| t.num_elements() >= *n && t.dtype() == gemm.dtype)
        && bias.is_some() == has_bias
        && side.is_some() == gemm.has_side
        && bias.is_none_or(|b| b.num_elements() == gemm.n && b.dtype() == gemm.dtype);
    match fits {
        true => Ok(()),
        false => Err(internal!(
            "a matrix product does not fit its tensors: {gemm:?}"
        )),
    }
}
