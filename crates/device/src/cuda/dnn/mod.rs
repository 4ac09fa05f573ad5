//! [`Dnn`]: convolutions by NVIDIA's cuDNN, which is loaded at run time.
//!
//! Numbers are those of `cudnn_graph.h`, `cudnn_ops.h` and `cudnn_cnn.h`.

mod gradients;

use super::library::{Handle, Loaded, Plans, measure, open};
use super::lock;
use crate::{StreamMemory, backend::Address};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

pub use gradients::ConvGradient;

const LIBRARIES: &[&str] = &["libcudnn.so.9", "libcudnn.so.8"];
const NHWC: c_int = 1;
const CROSS_CORRELATION: c_int = 1;
/// CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, the only one without an activation.
const PRECOMP_GEMM: c_int = 1;
const N_ALGORITHMS: c_int = 8;
const MIN_WORKSPACE: usize = 1 << 20;
const MAX_WORKSPACE: usize = 256 << 20;

/// A kind of convolution of `[batch, height, width, channels]` with a filter of
/// `[outputs, height, width, channels / groups]`, plus a bias.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Conv {
    /// Float, bfloat16 or half.
    pub dtype: DType,
    /// Dimensions of the input.
    pub input: [usize; 4],
    /// Dimensions of the filter.
    pub filter: [usize; 4],
    /// Dimensions of the output.
    pub output: [usize; 4],
    /// Rows and columns of zeros on each side.
    pub pad: [usize; 2],
    /// Steps of the window.
    pub stride: [usize; 2],
    /// Distances within the window.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
    /// Whether something is added before the activation.
    pub has_side: bool,
    /// Whether what is negative becomes zero.
    pub relu: bool,
    /// Whether float products are computed in TF32.
    pub tf32: bool,
}

/// The tensors of a convolution.
#[derive(Clone, Copy)]
pub struct ConvArgs<'a> {
    /// The input.
    pub x: &'a Tensor,
    /// The filter.
    pub filter: &'a Tensor,
    /// A number for each output channel.
    pub bias: &'a Tensor,
    /// What is added, with the shape of the output.
    pub side: Option<&'a Tensor>,
    /// The output.
    pub y: &'a Tensor,
}

super::library::functions! {
    Functions {
        create = b"cudnnCreate\0" (*mut Handle);
        destroy = b"cudnnDestroy\0" (Handle);
        set_stream = b"cudnnSetStream\0" (Handle, Handle);
        tensor_create = b"cudnnCreateTensorDescriptor\0" (*mut Handle);
        tensor_set = b"cudnnSetTensor4dDescriptor\0" (Handle, c_int, c_int, c_int, c_int, c_int, c_int);
        tensor_destroy = b"cudnnDestroyTensorDescriptor\0" (Handle);
        filter_create = b"cudnnCreateFilterDescriptor\0" (*mut Handle);
        filter_set = b"cudnnSetFilter4dDescriptor\0" (Handle, c_int, c_int, c_int, c_int, c_int, c_int);
        filter_destroy = b"cudnnDestroyFilterDescriptor\0" (Handle);
        conv_create = b"cudnnCreateConvolutionDescriptor\0" (*mut Handle);
        conv_set = b"cudnnSetConvolution2dDescriptor\0" (Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int,
                                                         c_int);
        conv_math = b"cudnnSetConvolutionMathType\0" (Handle, c_int);
        conv_groups = b"cudnnSetConvolutionGroupCount\0" (Handle, c_int);
        conv_destroy = b"cudnnDestroyConvolutionDescriptor\0" (Handle);
        activation_create = b"cudnnCreateActivationDescriptor\0" (*mut Handle);
        activation_set = b"cudnnSetActivationDescriptor\0" (Handle, c_int, c_int, f64);
        activation_destroy = b"cudnnDestroyActivationDescriptor\0" (Handle);
        workspace = b"cudnnGetConvolutionForwardWorkspaceSize\0" (Handle, Handle, Handle, Handle, Handle, c_int,
                                                                  *mut usize);
        forward = b"cudnnConvolutionBiasActivationForward\0" (Handle, *const c_void, Handle, u64, Handle, u64, Handle,
                                                              c_int, u64, usize, *const c_void, Handle, u64, Handle,
                                                              u64, Handle, Handle, u64);
        input_workspace = b"cudnnGetConvolutionBackwardDataWorkspaceSize\0" (Handle, Handle, Handle, Handle, Handle,
                                                                             c_int, *mut usize);
        input_gradient = b"cudnnConvolutionBackwardData\0" (Handle, *const c_void, Handle, u64, Handle, u64, Handle,
                                                            c_int, u64, usize, *const c_void, Handle, u64);
        filter_workspace = b"cudnnGetConvolutionBackwardFilterWorkspaceSize\0" (Handle, Handle, Handle, Handle, Handle,
                                                                                c_int, *mut usize);
        filter_gradient = b"cudnnConvolutionBackwardFilter\0" (Handle, *const c_void, Handle, u64, Handle, u64, Handle,
                                                               c_int, u64, usize, *const c_void, Handle, u64);
    }
}

/// cuDNN for the computing stream of one device.
pub struct Dnn {
    library: Arc<Loaded<Functions>>,
    handle: Handle,
    plans: Plans<Conv, Plan>,
    gradients: Plans<(Conv, ConvGradient), Plan>,
    /// A handle is for one thread at a time.
    enqueue: Mutex<()>,
    /// Memory that convolutions share, one after the other on the stream; each at least twice as large as the one before.
    workspaces: Mutex<Vec<Tensor>>,
}

/// A prepared convolution.
struct Plan {
    library: Arc<Loaded<Functions>>,
    input: Handle,
    filter: Handle,
    bias: Handle,
    output: Handle,
    conv: Handle,
    activation: Handle,
    algorithm: c_int,
    workspace: usize,
}

impl Drop for Plan {
    fn drop(&mut self) {
        let f = &self.library.functions;
        // SAFETY: the handles were created by the library, which takes zero for none, and nothing uses them any more.
        unsafe {
            for tensor in [self.input, self.bias, self.output] {
                (f.tensor_destroy)(tensor);
            }
            (f.filter_destroy)(self.filter);
            (f.conv_destroy)(self.conv);
            (f.activation_destroy)(self.activation);
        }
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        // SAFETY: the handle is the library's, and nothing uses it any more.
        unsafe { (self.library.functions.destroy)(self.handle) };
    }
}

fn check(result: c_int, what: &str) -> Result<()> {
    match result {
        0 => Ok(()),
        9 | 3000..4000 => Err(unimplemented_error!(
            "{what}: cuDNN has no such convolution"
        )),
        _ => Err(internal!("{what}: error {result} of cuDNN")),
    }
}

fn data_type(dtype: DType) -> Result<c_int> {
    match dtype {
        DType::Float => Ok(0),
        DType::Half => Ok(2),
        DType::Bfloat16 => Ok(9),
        _ => Err(unimplemented_error!(
            "there are no {dtype} convolutions on GPUs"
        )),
    }
}

impl Dnn {
    /// Loads the library for a device whose context is current.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if there is no library.
    pub fn open() -> Result<Dnn> {
        let library = open(LIBRARIES)?;
        // SAFETY: the functions have the types that cuDNN's headers declare.
        let functions = unsafe { Functions::find(&library) }?;
        let mut handle = 0;
        // SAFETY: writes one handle.
        let created = unsafe { (functions.create)(&raw mut handle) };
        check(created, "cudnnCreate")?;
        Ok(Dnn {
            library: Arc::new(Loaded {
                functions,
                _library: library,
            }),
            handle,
            plans: Plans::default(),
            gradients: Plans::default(),
            enqueue: Mutex::default(),
            workspaces: Mutex::default(),
        })
    }

    /// Enqueues a convolution on the computing stream.
    ///
    /// # Errors
    /// INTERNAL if a tensor is not on the device, or has not the size that the convolution needs; UNIMPLEMENTED if
    /// the library has no such convolution.
    pub fn convolve(&self, memory: &StreamMemory, conv: &Conv, args: &ConvArgs) -> Result<()> {
        check_sizes(conv, args)?;
        let at = |t: &Tensor| memory.span(t).map(|span| span.address);
        // Where nothing is added the output stands in.
        let side = args.side.map_or_else(|| at(args.y), at)?;
        let addresses = [
            at(args.x)?,
            at(args.filter)?,
            at(args.bias)?,
            side,
            at(args.y)?,
        ];
        let plan = self.plans.of(conv, || self.plan(memory, conv, addresses))?;
        self.enqueue(memory, conv, &plan, addresses)
    }

    /// At least `len` bytes. What is too small stays: captured steps have its address.
    fn scratch(&self, memory: &StreamMemory, len: usize) -> Result<Tensor> {
        let mut workspaces = lock(&self.workspaces);
        let last = workspaces.last().filter(|t| t.byte_len() >= len);
        if let Some(tensor) = last {
            return Ok(tensor.clone());
        }
        let floats = len.next_power_of_two().max(MIN_WORKSPACE) / 4;
        let tensor = memory.allocate_tensor(DType::Float, Shape::from([floats]))?;
        workspaces.push(tensor.clone());
        Ok(tensor)
    }

    fn enqueue(
        &self,
        memory: &StreamMemory,
        conv: &Conv,
        plan: &Plan,
        [x, filter, bias, side, y]: [Address; 5],
    ) -> Result<()> {
        let workspace = self.scratch(memory, plan.workspace)?;
        let workspace = memory.span(&workspace)?;
        let (one, add) = (1.0f32, if conv.has_side { 1.0f32 } else { 0.0 });
        let _one = lock(&self.enqueue);
        // SAFETY: the handle is the library's, which one thread uses at a time; the stream lives as long as the memory.
        let set =
            unsafe { (self.library.functions.set_stream)(self.handle, memory.compute().raw().0) };
        check(set, "cudnnSetStream")?;
        // SAFETY: the handles are the library's; `check_sizes` compared the descriptors with the memory, all of which
        // notes the computing stream; the factors are read before the call returns.
        let enqueued = unsafe {
            (self.library.functions.forward)(
                self.handle,
                (&raw const one).cast(),
                plan.input,
                x.0,
                plan.filter,
                filter.0,
                plan.conv,
                plan.algorithm,
                workspace.address.0,
                workspace.len,
                (&raw const add).cast(),
                plan.output,
                side.0,
                plan.bias,
                bias.0,
                plan.activation,
                plan.output,
                y.0,
            )
        };
        memory.compute().note_op();
        check(enqueued, "cudnnConvolutionBiasActivationForward")
    }

    /// Prepares a convolution with the fastest algorithm.
    fn plan(&self, memory: &StreamMemory, conv: &Conv, addresses: [Address; 5]) -> Result<Plan> {
        let mut plan = self.describe(conv)?;
        let mut best: Option<(u128, c_int, usize)> = None;
        let mut why = None;
        for algorithm in 0..N_ALGORITHMS {
            if !conv.relu && algorithm != PRECOMP_GEMM {
                continue;
            }
            plan.algorithm = algorithm;
            let mut size = 0;
            // SAFETY: the handles are the library's; writes one size.
            let sized = unsafe {
                (self.library.functions.workspace)(
                    self.handle,
                    plan.input,
                    plan.filter,
                    plan.conv,
                    plan.output,
                    algorithm,
                    &raw mut size,
                )
            };
            if sized != 0 || size > MAX_WORKSPACE {
                continue;
            }
            plan.workspace = size;
            match measure(memory, || self.enqueue(memory, conv, &plan, addresses)) {
                Ok(time) if best.is_none_or(|(least, ..)| time < least) => {
                    best = Some((time, algorithm, size));
                }
                Ok(_) => {}
                Err(e) => why = Some(e),
            }
        }
        let none = || unimplemented_error!("cuDNN has no such convolution");
        let (_, algorithm, size) = best.ok_or_else(|| why.unwrap_or_else(none))?;
        (plan.algorithm, plan.workspace) = (algorithm, size);
        Ok(plan)
    }

    fn describe(&self, conv: &Conv) -> Result<Plan> {
        let (f, kind) = (&self.library.functions, data_type(conv.dtype)?);
        let mut plan = Plan {
            library: self.library.clone(),
            input: 0,
            filter: 0,
            bias: 0,
            output: 0,
            conv: 0,
            activation: 0,
            algorithm: 0,
            workspace: 0,
        };
        let int = |n: usize| n as c_int;
        let outputs = conv.filter[0];
        // SAFETY: each `create` writes one handle, which the calls that follow describe.
        unsafe {
            for (handle, [b, h, w, c]) in [
                (&mut plan.input, conv.input),
                (&mut plan.output, conv.output),
                (&mut plan.bias, [1, 1, 1, outputs]),
            ] {
                check((f.tensor_create)(handle), "cudnnCreateTensorDescriptor")?;
                let set = (f.tensor_set)(*handle, NHWC, kind, int(b), int(c), int(h), int(w));
                check(set, "cudnnSetTensor4dDescriptor")?;
            }
            check(
                (f.filter_create)(&raw mut plan.filter),
                "cudnnCreateFilterDescriptor",
            )?;
            let [o, h, w, c] = conv.filter.map(int);
            check(
                (f.filter_set)(plan.filter, kind, NHWC, o, c, h, w),
                "cudnnSetFilter4dDescriptor",
            )?;
            check(
                (f.conv_create)(&raw mut plan.conv),
                "cudnnCreateConvolutionDescriptor",
            )?;
            let ([ph, pw], [sh, sw], [dh, dw]) = (
                conv.pad.map(int),
                conv.stride.map(int),
                conv.dilation.map(int),
            );
            let set = (f.conv_set)(plan.conv, ph, pw, sh, sw, dh, dw, CROSS_CORRELATION, 0);
            check(set, "cudnnSetConvolution2dDescriptor")?;
            // CUDNN_TENSOR_OP_MATH, or CUDNN_DEFAULT_MATH, which allows TF32, or CUDNN_FMA_MATH.
            let math = match (conv.dtype, conv.tf32) {
                (DType::Float, true) => 0,
                (DType::Float, false) => 3,
                _ => 1,
            };
            check(
                (f.conv_math)(plan.conv, math),
                "cudnnSetConvolutionMathType",
            )?;
            check(
                (f.conv_groups)(plan.conv, int(conv.groups)),
                "cudnnSetConvolutionGroupCount",
            )?;
            check(
                (f.activation_create)(&raw mut plan.activation),
                "cudnnCreateActivationDescriptor",
            )?;
            // CUDNN_ACTIVATION_RELU or CUDNN_ACTIVATION_IDENTITY; NaNs stay.
            let kind = if conv.relu { 1 } else { 5 };
            check(
                (f.activation_set)(plan.activation, kind, 1, 0.0),
                "cudnnSetActivationDescriptor",
            )?;
        }
        Ok(plan)
    }
}

fn check_sizes(conv: &Conv, args: &ConvArgs) -> Result<()> {
    let count = |dims: &[usize; 4]| dims.iter().product::<usize>();
    let needs = [
        (args.x, count(&conv.input)),
        (args.filter, count(&conv.filter)),
        (args.bias, conv.filter[0]),
        (args.side.unwrap_or(args.y), count(&conv.output)),
        (args.y, count(&conv.output)),
    ];
    let fits = needs
        .iter()
        .all(|(t, n)| t.num_elements() == *n && t.dtype() == conv.dtype);
    match fits && args.side.is_some() == conv.has_side {
        true => Ok(()),
        false => Err(internal!(
            "a convolution does not fit its tensors: {conv:?}"
        )),
    }
}
