//! An op and a kernel of a client, run eagerly and in a graph.

use crate::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::Once;

/// Keeps the shape of the first input.
unsafe extern "C" fn shape(ctx: *mut TF_ShapeInferenceContext, status: *mut TF_Status) {
    // SAFETY: the library's arguments.
    unsafe {
        let handle = TF_NewShapeHandle();
        TF_ShapeInferenceContextGetInput(ctx, 0, handle, status);
        TF_ShapeInferenceContextSetOutput(ctx, 0, handle, status);
        TF_DeleteShapeHandle(handle);
    }
}

/// The factor for an output of another dtype than the declared one.
const WRONG: f32 = 7.0;

/// Reads the attr `factor`.
unsafe extern "C" fn create(ctx: *mut TF_OpKernelConstruction) -> *mut c_void {
    let status = TF_NewStatus();
    let mut factor = 0f32;
    // SAFETY: the library's argument.
    unsafe {
        TF_OpKernelConstruction_GetAttrFloat(ctx, c"factor".as_ptr(), &raw mut factor, status);
        if TF_GetCode(status) != 0 || factor < 0.0 {
            TF_SetStatus(status, 3, c"factor is negative".as_ptr());
            TF_OpKernelConstruction_Failure(ctx, status);
        }
        TF_DeleteStatus(status);
    }
    crate::guard::handle(factor).cast()
}

unsafe extern "C" fn compute(kernel: *mut c_void, ctx: *mut TF_OpKernelContext) {
    let status = TF_NewStatus();
    let mut input = null_mut();
    // SAFETY: the library's arguments, and tensors of the same size.
    unsafe {
        TF_GetInput(ctx, 0, &raw mut input, status);
        let n = TF_TensorElementCount(input) as usize;
        let dims = [n as i64];
        // The declared dtype counts.
        let output = TF_AllocateOutput(ctx, 0, 3, dims.as_ptr(), 1, n * 4, status);
        let from = crate::guard::list(TF_TensorData(input).cast::<f32>(), n);
        let to = crate::guard::list_mut(TF_TensorData(output).cast::<f32>(), n);
        let factor = *kernel.cast::<f32>();
        if factor == WRONG {
            let ints = TF_AllocateTensor(3, dims.as_ptr(), 1, n * 4);
            TF_SetOutput(ctx, 0, ints, status);
            TF_DeleteTensor(ints);
        }
        for (to, from) in to.iter_mut().zip(from) {
            *to = factor * from;
        }
        TF_DeleteTensor(input);
        TF_DeleteTensor(output);
        TF_DeleteStatus(status);
    }
}

unsafe extern "C" fn drop_kernel(kernel: *mut c_void) {
    // SAFETY: `create` made it.
    unsafe { crate::guard::delete(kernel.cast::<f32>()) }
}

fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = TF_NewStatus();
        // SAFETY: the objects live.
        unsafe {
            let op = TF_NewOpDefinitionBuilder(c"TestsScale".as_ptr());
            TF_OpDefinitionBuilderAddAttr(op, c"T: {float, double}".as_ptr());
            TF_OpDefinitionBuilderAddAttr(op, c"factor: float = 2.0".as_ptr());
            TF_OpDefinitionBuilderAddInput(op, c"x: T".as_ptr());
            TF_OpDefinitionBuilderAddOutput(op, c"y: T".as_ptr());
            TF_OpDefinitionBuilderSetShapeInferenceFunction(op, Some(shape));
            TF_RegisterOpDefinition(op, status);
            assert_eq!(TF_GetCode(status), 0);
            let kernel = TF_NewKernelBuilder(
                c"TestsScale".as_ptr(),
                c"CPU".as_ptr(),
                Some(create),
                Some(compute),
                Some(drop_kernel),
            );
            TF_KernelBuilder_TypeConstraint(kernel, c"T".as_ptr(), 1, status);
            TF_RegisterKernelBuilder(c"scale".as_ptr(), kernel, status);
            assert_eq!(TF_GetCode(status), 0);
            TF_DeleteStatus(status);
        }
    });
}

fn vector(values: &[f32]) -> *mut TF_Tensor {
    let dims = [values.len() as i64];
    // SAFETY: the tensor has room for the values.
    unsafe {
        let tensor = TF_AllocateTensor(1, dims.as_ptr(), 1, size_of_val(values));
        let data = TF_TensorData(tensor).cast::<f32>();
        data.copy_from_nonoverlapping(values.as_ptr(), values.len());
        tensor
    }
}

#[test]
fn kernels_run_eagerly() {
    register();
    let status = TF_NewStatus();
    // SAFETY: the objects live.
    unsafe {
        let options = TFE_NewContextOptions();
        let context = TFE_NewContext(options, status);
        let tensor = vector(&[1.0, 2.0, 3.0]);
        let x = TFE_NewTensorHandle(tensor, status);
        for (factor, code) in [(5.0, 0), (-1.0, 3), (WRONG, 13)] {
            let op = TFE_NewOp(context, c"TestsScale".as_ptr(), status);
            TFE_OpAddInput(op, x, status);
            TFE_OpSetAttrFloat(op, c"factor".as_ptr(), factor);
            let (mut y, mut n) = (null_mut(), 1);
            TFE_Execute(op, &raw mut y, &raw mut n, status);
            let message = CStr::from_ptr(TF_Message(status)).to_string_lossy();
            assert_eq!(TF_GetCode(status), code, "{message}");
            let text = "Output 0 of type int32 does not match declared output type float for node";
            assert!(code != 13 || message.starts_with(text), "{message}");
            if code == 0 {
                let result = TFE_TensorHandleResolve(y, status);
                let values = crate::guard::list(TF_TensorData(result).cast::<f32>(), 3);
                assert_eq!(values, [5.0, 10.0, 15.0]);
                TF_DeleteTensor(result);
            }
            TFE_DeleteTensorHandle(y);
            TFE_DeleteOp(op);
        }
        TFE_DeleteTensorHandle(x);
        TF_DeleteTensor(tensor);
        TFE_DeleteContext(context);
        TFE_DeleteContextOptions(options);
        TF_DeleteStatus(status);
    }
}

#[test]
fn kernels_run_in_graphs() {
    register();
    let status = TF_NewStatus();
    // SAFETY: the objects live.
    unsafe {
        let graph = TF_NewGraph();
        let node = TF_NewOperation(graph, c"Placeholder".as_ptr(), c"x".as_ptr());
        TF_SetAttrType(node, c"dtype".as_ptr(), 1);
        let dims = [3i64];
        TF_SetAttrShape(node, c"shape".as_ptr(), dims.as_ptr(), 1);
        let x = TF_Output {
            oper: TF_FinishOperation(node, status),
            index: 0,
        };
        let node = TF_NewOperation(graph, c"TestsScale".as_ptr(), c"y".as_ptr());
        TF_AddInput(node, x);
        let y = TF_Output {
            oper: TF_FinishOperation(node, status),
            index: 0,
        };
        let message = CStr::from_ptr(TF_Message(status)).to_string_lossy();
        assert_eq!(TF_GetCode(status), 0, "{message}");
        let mut shape = [0i64];
        TF_GraphGetTensorShape(graph, y, shape.as_mut_ptr(), 1, status);
        assert_eq!(shape, [3]);
        let options = TF_NewSessionOptions();
        let session = TF_NewSession(graph, options, status);
        let tensor = vector(&[1.0, 2.0, 3.0]);
        let mut result = null_mut();
        TF_SessionRun(
            session,
            null(),
            &raw const x,
            (&raw const tensor).cast(),
            1,
            &raw const y,
            &raw mut result,
            1,
            null(),
            0,
            null_mut(),
            status,
        );
        let message = CStr::from_ptr(TF_Message(status)).to_string_lossy();
        assert_eq!(TF_GetCode(status), 0, "{message}");
        let values = crate::guard::list(TF_TensorData(result).cast::<f32>(), 3);
        assert_eq!(values, [2.0, 4.0, 6.0]);
        TF_DeleteTensor(result);
        TF_DeleteTensor(tensor);
        TF_DeleteSession(session, status);
        TF_DeleteSessionOptions(options);
        TF_DeleteGraph(graph);
        TF_DeleteStatus(status);
    }
}

/// What the kernels of [`labels_and_priorities_choose_kernels`] multiply by.
unsafe extern "C" fn multiply<const BY: i32>(_: *mut c_void, ctx: *mut TF_OpKernelContext) {
    let status = TF_NewStatus();
    let mut input = null_mut();
    // SAFETY: the library's arguments, a scalar each.
    unsafe {
        TF_GetInput(ctx, 0, &raw mut input, status);
        let output = TF_AllocateOutput(ctx, 0, 1, null(), 0, 4, status);
        let value = *TF_TensorData(input).cast::<f32>();
        *TF_TensorData(output).cast::<f32>() = BY as f32 * value;
        TF_DeleteTensor(input);
        TF_DeleteTensor(output);
        TF_DeleteStatus(status);
    }
}

/// Runs the op `TestsChoose` on 1 in a graph, with a label.
fn choose(label: Option<&CStr>, status: *mut TF_Status) -> f32 {
    // SAFETY: the objects live.
    unsafe {
        let graph = TF_NewGraph();
        let node = TF_NewOperation(graph, c"Placeholder".as_ptr(), c"x".as_ptr());
        TF_SetAttrType(node, c"dtype".as_ptr(), 1);
        let x = TF_Output {
            oper: TF_FinishOperation(node, status),
            index: 0,
        };
        let node = TF_NewOperation(graph, c"TestsChoose".as_ptr(), c"y".as_ptr());
        TF_AddInput(node, x);
        if let Some(label) = label {
            let bytes = label.to_bytes();
            TF_SetAttrString(
                node,
                c"_kernel".as_ptr(),
                bytes.as_ptr().cast(),
                bytes.len(),
            );
        }
        let y = TF_Output {
            oper: TF_FinishOperation(node, status),
            index: 0,
        };
        let options = TF_NewSessionOptions();
        let session = TF_NewSession(graph, options, status);
        let one = TF_AllocateTensor(1, null(), 0, 4);
        *TF_TensorData(one).cast::<f32>() = 1.0;
        let mut result = null_mut();
        TF_SessionRun(
            session,
            null(),
            &raw const x,
            (&raw const one).cast(),
            1,
            &raw const y,
            &raw mut result,
            1,
            null(),
            0,
            null_mut(),
            status,
        );
        let value = result
            .as_ref()
            .map(|_| *TF_TensorData(result).cast::<f32>());
        TF_DeleteTensor(result);
        TF_DeleteTensor(one);
        let closed = TF_NewStatus();
        TF_DeleteSession(session, closed);
        TF_DeleteStatus(closed);
        TF_DeleteSessionOptions(options);
        TF_DeleteGraph(graph);
        value.unwrap_or(f32::NAN)
    }
}

#[test]
fn labels_and_priorities_choose_kernels() {
    let status = TF_NewStatus();
    type Compute = unsafe extern "C" fn(*mut c_void, *mut TF_OpKernelContext);
    let kernel = |compute: Compute, priority, label: Option<&CStr>| {
        let (op, device) = (c"TestsChoose".as_ptr(), c"CPU".as_ptr());
        // SAFETY: the objects live.
        unsafe {
            let kernel = TF_NewKernelBuilder(op, device, None, Some(compute), None);
            TF_KernelBuilder_Priority(kernel, priority);
            if let Some(label) = label {
                TF_KernelBuilder_Label(kernel, label.as_ptr());
            }
            TF_RegisterKernelBuilder(c"choose".as_ptr(), kernel, status);
            assert_eq!(TF_GetCode(status), 0);
        }
    };
    // SAFETY: the objects live.
    unsafe {
        // One that is registered before its op.
        kernel(multiply::<2>, 0, None);
        let op = TF_NewOpDefinitionBuilder(c"TestsChoose".as_ptr());
        TF_OpDefinitionBuilderAddInput(op, c"x: float".as_ptr());
        TF_OpDefinitionBuilderAddOutput(op, c"y: float".as_ptr());
        TF_OpDefinitionBuilderSetShapeInferenceFunction(op, Some(shape));
        TF_RegisterOpDefinition(op, status);
        assert_eq!(TF_GetCode(status), 0);
        kernel(multiply::<3>, 0, Some(c"three"));
        assert_eq!(choose(None, status), 2.0);
        assert_eq!(choose(Some(c"three"), status), 3.0);
        kernel(multiply::<5>, 5, None);
        assert_eq!(choose(None, status), 5.0);
        kernel(multiply::<7>, 5, None);
        assert!(choose(None, status).is_nan());
        let message = CStr::from_ptr(TF_Message(status)).to_string_lossy();
        assert!(
            message.starts_with("Multiple OpKernel registrations match NodeDef"),
            "{message}"
        );
        TF_DeleteStatus(status);
    }
}

#[test]
fn malformed_definitions_are_errors() {
    let status = TF_NewStatus();
    for (name, attr, input, code) in [
        (c"TestsBadAttr", c"T: nothing", c"x: float", 3),
        (c"TestsBadInput", c"T: type", c"x: U", 3),
        (c"Identity", c"T: type", c"x: T", 6),
    ] {
        // SAFETY: the objects live.
        unsafe {
            let op = TF_NewOpDefinitionBuilder(name.as_ptr());
            TF_OpDefinitionBuilderAddAttr(op, attr.as_ptr());
            TF_OpDefinitionBuilderAddInput(op, input.as_ptr());
            TF_RegisterOpDefinition(op, status);
            assert_eq!(TF_GetCode(status), code, "{name:?}");
        }
    }
    // SAFETY: as above.
    unsafe {
        TF_DeleteOpDefinitionBuilder(null_mut());
        TF_DeleteKernelBuilder(null_mut());
        TF_DeleteShapeHandle(null_mut());
        TF_DeleteDimensionHandle(null_mut());
        TF_DeleteStatus(status);
    }
}
