//! Eager execution as a C program uses it.

use crate::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Client {
    context: *mut TFE_Context,
    status: *mut TF_Status,
}

impl Client {
    fn new(is_async: bool) -> Client {
        let status = TF_NewStatus();
        let options = TFE_NewContextOptions();
        // SAFETY: the objects were made above.
        let context = unsafe {
            TFE_ContextOptionsSetAsync(options, u8::from(is_async));
            let context = TFE_NewContext(options, status);
            TFE_DeleteContextOptions(options);
            context
        };
        Client { context, status }
    }

    fn outcome(&self) -> (c_int, String) {
        // SAFETY: the status lives.
        let message = unsafe { CStr::from_ptr(TF_Message(self.status)) };
        // SAFETY: as above.
        let code = unsafe { TF_GetCode(self.status) };
        (code, message.to_string_lossy().into_owned())
    }

    fn expect_ok(&self, what: &str) {
        assert_eq!(self.outcome(), (0, String::new()), "{what}");
    }

    fn vector(&self, values: &[f32]) -> *mut TFE_TensorHandle {
        let dims = [values.len() as i64];
        // SAFETY: the tensor has room for the values.
        unsafe {
            let tensor = TF_AllocateTensor(1, dims.as_ptr(), 1, size_of_val(values));
            let data = TF_TensorData(tensor).cast::<f32>();
            data.copy_from_nonoverlapping(values.as_ptr(), values.len());
            let handle = TFE_NewTensorHandle(tensor, self.status);
            TF_DeleteTensor(tensor);
            self.expect_ok("a handle");
            handle
        }
    }

    fn op(&self, name: &str, inputs: &[*mut TFE_TensorHandle]) -> *mut TFE_Op {
        let name = CString::new(name).expect("text");
        // SAFETY: the handles live.
        unsafe {
            let op = TFE_NewOp(self.context, name.as_ptr(), self.status);
            if !op.is_null() {
                for input in inputs {
                    TFE_OpAddInput(op, *input, self.status);
                }
            }
            op
        }
    }

    /// Runs and deletes a call of one output.
    fn execute(&self, op: *mut TFE_Op) -> *mut TFE_TensorHandle {
        let mut output = null_mut();
        let mut n = 1;
        // SAFETY: there is room for one output.
        unsafe {
            TFE_Execute(op, &raw mut output, &raw mut n, self.status);
            TFE_DeleteOp(op);
        }
        output
    }

    fn values(&self, handle: *mut TFE_TensorHandle) -> Vec<f32> {
        // SAFETY: the handle lives, and its tensor is of floats.
        unsafe {
            let tensor = TFE_TensorHandleResolve(handle, self.status);
            if tensor.is_null() {
                return Vec::new();
            }
            let n = TF_TensorElementCount(tensor) as usize;
            let values = crate::guard::list(TF_TensorData(tensor).cast::<f32>(), n).to_vec();
            TF_DeleteTensor(tensor);
            values
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: `new` made them.
        unsafe {
            TFE_DeleteContext(self.context);
            TF_DeleteStatus(self.status);
        }
    }
}

/// Deletes handles.
fn delete(handles: &[*mut TFE_TensorHandle]) {
    for handle in handles {
        // SAFETY: the tests have one reference to each.
        unsafe { TFE_DeleteTensorHandle(*handle) };
    }
}

#[test]
fn calls_run_in_both_modes() {
    for is_async in [false, true] {
        let c = Client::new(is_async);
        let x = c.vector(&[1.0, 2.0]);
        let mut sum = c.execute(c.op("AddV2", &[x, x]));
        for _ in 0..100 {
            let next = c.execute(c.op("AddV2", &[sum, x]));
            delete(&[sum]);
            sum = next;
        }
        assert_eq!(c.values(sum), [102.0, 204.0], "async: {is_async}");
        delete(&[x, sum]);
    }
}

#[test]
fn errors_of_asynchronous_calls_stay() {
    let c = Client::new(true);
    let (two, three) = (c.vector(&[1.0, 2.0]), c.vector(&[1.0, 2.0, 3.0]));
    let bad = c.execute(c.op("AddV2", &[two, three]));
    assert!(c.values(bad).is_empty());
    assert_eq!(c.outcome().0, 3, "{:?}", c.outcome());
    assert!(c.execute(c.op("AddV2", &[two, two])).is_null());
    let (code, text) = c.outcome();
    assert_eq!(code, 3);
    assert!(text.contains("\n\tEncountered when executing an operation using EagerExecutor."));
    // SAFETY: the context lives.
    unsafe {
        let executor = TFE_ContextGetExecutorForThread(c.context);
        TFE_ExecutorClearError(executor);
        TFE_ExecutorWaitForAllPendingNodes(executor, c.status);
        TFE_DeleteExecutor(executor);
    }
    c.expect_ok("cleared");
    let good = c.execute(c.op("AddV2", &[two, two]));
    assert_eq!(c.values(good), [2.0, 4.0]);
    let bad_again = c.execute(c.op("AddV2", &[two, three]));
    // SAFETY: the context lives.
    unsafe {
        TFE_ContextAsyncWait(c.context, c.status);
        assert_eq!(c.outcome().0, 3, "the wait reports the error");
        TFE_ContextAsyncWait(c.context, c.status);
    }
    c.expect_ok("and clears it");
    delete(&[two, three, bad, good, bad_again]);
}

#[test]
fn bad_calls_are_errors() {
    let c = Client::new(false);
    assert!(c.op("NoSuchOp", &[]).is_null());
    assert_eq!(c.outcome().0, 5, "{:?}", c.outcome());
    let x = c.vector(&[1.0]);
    assert!(c.execute(c.op("AddV2", &[x])).is_null());
    assert_eq!(c.outcome().0, 3, "too few inputs");
    let op = c.op("Identity", &[x]);
    // SAFETY: the op lives.
    unsafe { TFE_OpSetAttrInt(op, c"no_such_attr".as_ptr(), 1) };
    let same = c.execute(op);
    assert_eq!(c.values(same), [1.0], "an attr that the op does not have");
    // SAFETY: the op lives, with room for its output.
    unsafe {
        let (op, mut out, mut n) = (c.op("Neg", &[x]), null_mut(), 1);
        TFE_Execute(op, &raw mut out, &raw mut n, c.status);
        c.expect_ok("executed");
        delete(&[out]);
        assert_eq!(TFE_OpGetFlatInputCount(op, c.status), 0);
        TFE_Execute(op, &raw mut out, &raw mut n, c.status);
        assert_eq!(c.outcome().0, 3, "each run needs its inputs");
        TFE_OpAddInput(op, x, c.status);
        TFE_Execute(op, &raw mut out, &raw mut n, c.status);
        c.expect_ok("executed again");
        delete(&[out]);
        TFE_OpSetDevice(op, c"cpu:0".as_ptr(), c.status);
        assert_eq!(c.outcome().0, 3, "a device without a slash");
        TFE_DeleteOp(op);
    }
    assert!(c.execute(c.op("Cast", &[x])).is_null());
    let text = "No attr named 'DstT' in NodeDef:\n\t [[{{node Cast}}]]";
    assert_eq!(c.outcome(), (5, text.to_string()));
    let op = c.op("Identity", &[x]);
    // SAFETY: the op lives; there is no room for its output.
    unsafe {
        let mut n = 0;
        TFE_Execute(op, null_mut(), &raw mut n, c.status);
        let message = "Expecting 1 outputs, but *num_retvals is 0";
        assert_eq!(c.outcome(), (3, message.to_string()));
        TFE_OpSetDevice(op, c"/device:GPU:0".as_ptr(), c.status);
    }
    assert!(c.execute(op).is_null());
    assert!(c.outcome().1.contains("enable_soft_placement=0"));
    // SAFETY: NULL is allowed where a status reports it.
    unsafe {
        TFE_OpAddInput(null_mut(), x, c.status);
        assert_eq!(c.outcome().0, 3);
        assert!(TFE_TensorHandleResolve(null_mut(), c.status).is_null());
        TFE_DeleteOp(null_mut());
        TFE_DeleteContext(null_mut());
        TFE_DeleteContextOptions(null_mut());
        TFE_DeleteTensorHandle(null_mut());
        TFE_DeleteExecutor(null_mut());
        TFE_DeleteCancellationManager(null_mut());
        TFE_DeleteTensorDebugInfo(null_mut());
    }
    delete(&[x, same]);
}

#[test]
fn a_deleted_large_input_is_overwritten() {
    let c = Client::new(false);
    let values = vec![1.0f32; 4096];
    let (x, y) = (c.vector(&values), c.vector(&values));
    let address = |h| {
        // SAFETY: the handle lives.
        unsafe { TFE_TensorHandleDevicePointer(h, c.status) }
    };
    let before = address(x);
    let op = c.op("AddV2", &[x, y]);
    delete(&[x]);
    let sum = c.execute(op);
    assert_eq!(address(sum), before);
    let kept = c.execute(c.op("AddV2", &[sum, y]));
    assert_ne!(address(kept), before);
    assert_eq!(c.values(sum)[0], 2.0);
    assert_eq!(c.values(kept)[4095], 3.0);
    delete(&[y, sum, kept]);
}

#[test]
fn functions_see_the_variables_of_the_context() {
    use ferroflow_model::proto::FunctionDef;
    use prost::Message;
    let text = "
        signature { name: 'add_to' is_stateful: true
            input_arg { name: 'v' type: DT_RESOURCE } input_arg { name: 'x' type: DT_FLOAT }
            output_arg { name: 'y' type: DT_FLOAT } }
        node_def { name: 'add' op: 'AssignAddVariableOp' input: 'v' input: 'x'
            attr { key: 'dtype' value { type: DT_FLOAT } } }
        node_def { name: 'read' op: 'ReadVariableOp' input: 'v' input: '^add'
            attr { key: 'dtype' value { type: DT_FLOAT } } }
        ret { key: 'y' value: 'read:value:0' }";
    let bytes = ferroflow_model::message_from_text("tensorflow.FunctionDef", text).expect("text");
    FunctionDef::decode(&bytes[..]).expect("a function");
    let unread = text
        .replace("add_to", "add_only")
        .replace("'read:value:0'", "'x'");
    let unread = ferroflow_model::message_from_text("tensorflow.FunctionDef", &unread);
    let unread = unread.expect("text");
    let c = Client::new(false);
    // SAFETY: the objects live.
    unsafe {
        TFE_ContextAddFunctionDef(c.context, bytes.as_ptr().cast(), bytes.len(), c.status);
        c.expect_ok("added");
        TFE_ContextAddFunctionDef(c.context, unread.as_ptr().cast(), unread.len(), c.status);
        c.expect_ok("added");
        let variable = c.op("VarHandleOp", &[]);
        TFE_OpSetAttrType(variable, c"dtype".as_ptr(), 1);
        TFE_OpSetAttrShape(variable, c"shape".as_ptr(), null(), -1, c.status);
        let variable = c.execute(variable);
        let x = c.vector(&[1.0, 2.0]);
        let mut n = 0;
        let assign = c.op("AssignVariableOp", &[variable, x]);
        TFE_Execute(assign, null_mut(), &raw mut n, c.status);
        TFE_DeleteOp(assign);
        c.expect_ok("assigned");
        for expected in [[2.0, 4.0], [3.0, 6.0]] {
            let y = c.execute(c.op("add_to", &[variable, x]));
            c.expect_ok("called");
            assert_eq!(c.values(y), expected);
            delete(&[y]);
        }
        assert_eq!(TFE_ContextHasFunction(c.context, c"add_to".as_ptr()), 1);
        // A function that is called by name runs its nodes with effects, needed or not.
        for (expected, call) in [([4.0, 8.0], "add_only"), ([4.0, 8.0], "PartitionedCall")] {
            let op = match call {
                "PartitionedCall" => {
                    let op = c.op(call, &[]);
                    TFE_OpAddInputList(op, [variable, x].as_mut_ptr(), 2, c.status);
                    TFE_OpSetAttrTypeList(op, c"Tout".as_ptr(), [1].as_ptr(), 1);
                    TFE_OpSetAttrFunctionName(op, c"f".as_ptr(), c"add_only".as_ptr(), 8);
                    op
                }
                _ => c.op(call, &[variable, x]),
            };
            let same = c.execute(op);
            c.expect_ok(call);
            let read = c.op("ReadVariableOp", &[variable]);
            TFE_OpSetAttrType(read, c"dtype".as_ptr(), 1);
            let value = c.execute(read);
            assert_eq!(c.values(value), expected, "{call}");
            delete(&[same, value]);
        }
        // What was added twice is removed twice.
        TFE_ContextAddFunctionDef(c.context, bytes.as_ptr().cast(), bytes.len(), c.status);
        for left in [1, 0] {
            TFE_ContextRemoveFunction(c.context, c"add_to".as_ptr(), c.status);
            c.expect_ok("removed");
            let has = TFE_ContextHasFunction(c.context, c"add_to".as_ptr());
            assert_eq!(has, left);
        }
        TFE_ContextRemoveFunction(c.context, c"add_to".as_ptr(), c.status);
        assert_eq!(c.outcome().0, 3);
        assert!(c.op("add_to", &[]).is_null());
        delete(&[variable, x]);
    }
}

#[test]
fn metrics_count() {
    let status = TF_NewStatus();
    // SAFETY: the objects live.
    unsafe {
        let name = c"tests/counter".as_ptr();
        let counter = TFE_MonitoringNewCounter0(name, status, c"".as_ptr());
        let cell = TFE_MonitoringGetCellCounter0(counter);
        TFE_MonitoringCounterCellIncrementBy(cell, 2);
        assert_eq!(
            TFE_MonitoringCounterCellValue(TFE_MonitoringGetCellCounter0(counter)),
            2
        );
        TFE_MonitoringDeleteCounter0(counter);
        let again = TFE_MonitoringNewCounter0(name, status, c"".as_ptr());
        assert!(!again.is_null());
        TFE_MonitoringDeleteCounter0(again);
        TF_DeleteStatus(status);
    }
}

#[test]
fn memory_of_the_client_is_freed_once() {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn free(_: *mut c_void, _: usize, _: *mut c_void) {
        FREED.fetch_add(1, Ordering::Relaxed);
    }
    let c = Client::new(false);
    let mut values = [1.0f32; 64];
    let dims = [64i64];
    for (device, freed) in [(c"GPU:0", 1), (c"CPU:0", 2)] {
        // SAFETY: the values outlive the handle.
        let handle = unsafe {
            TFE_NewTensorHandleFromDeviceMemory(
                c.context,
                device.as_ptr(),
                1,
                dims.as_ptr(),
                1,
                values.as_mut_ptr().cast(),
                256,
                Some(free),
                null_mut(),
                c.status,
            )
        };
        assert_eq!(handle.is_null(), device == c"GPU:0");
        delete(&[handle]);
        assert_eq!(FREED.load(Ordering::Relaxed), freed, "{device:?}");
    }
}

#[test]
fn threads_share_a_context() {
    let c = Client::new(false);
    let context = c.context as usize;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let own = Client {
                    context: context as *mut TFE_Context,
                    status: TF_NewStatus(),
                };
                for _ in 0..200 {
                    let x = own.vector(&[1.0, 2.0, 3.0]);
                    let y = own.execute(own.op("Mul", &[x, x]));
                    assert_eq!(own.values(y), [1.0, 4.0, 9.0]);
                    delete(&[x, y]);
                }
                // SAFETY: the context belongs to the other client.
                unsafe { TF_DeleteStatus(own.status) };
                std::mem::forget(own);
            });
        }
    });
}

#[test]
fn lengths_of_arguments() {
    let c = Client::new(false);
    let x = c.vector(&[1.0]);
    let missing = |name: &str| format!("No attr named '{name}' in NodeDef:");
    // SAFETY: the objects live.
    unsafe {
        let op = c.op("IdentityN", &[]);
        assert_eq!(TFE_OpGetInputLength(op, c"input".as_ptr(), c.status), -1);
        assert_eq!(c.outcome(), (5, missing("T")));
        let (mut inputs, mut outputs, mut n) = ([x, x], [null_mut(); 2], 2);
        TFE_OpAddInputList(op, inputs.as_mut_ptr(), 2, c.status);
        for _ in 0..2 {
            let known = TFE_OpGetOutputLength(op, c"output".as_ptr(), c.status);
            assert_eq!(known, 2, "before the run and after it");
            if TFE_OpGetFlatInputCount(op, c.status) > 0 {
                TFE_Execute(op, outputs.as_mut_ptr(), &raw mut n, c.status);
                c.expect_ok("executed");
            }
        }
        TFE_DeleteOp(op);
        let op = c.op("Split", &[]);
        let length = || TFE_OpGetOutputLength(op, c"output".as_ptr(), c.status);
        assert_eq!((length(), c.outcome()), (-1, (5, missing("num_split"))));
        TFE_OpSetAttrInt(op, c"num_split".as_ptr(), 3);
        assert_eq!(length(), 3, "without inputs");
        TFE_DeleteOp(op);
        delete(&outputs);
    }
    delete(&[x]);
}

#[test]
fn an_op_without_a_kernel_has_no_device() {
    let c = Client::new(false);
    let x = c.vector(&[1.0]);
    // SAFETY: the objects live.
    unsafe {
        let op = c.op("Cast", &[x]);
        TFE_OpSetAttrType(op, c"DstT".as_ptr(), 11);
        let quantized = c.execute(op);
        c.expect_ok("qint8");
        assert!(c.execute(c.op("Relu", &[quantized])).is_null());
        delete(&[quantized]);
    }
    let (code, message) = c.outcome();
    assert_eq!(code, 5, "{message}");
    let start = "Could not find device for node: {{node Relu}} = Relu[T=DT_QINT8]\nAll kernels registered for op Relu:\n  device='CPU'";
    assert!(message.starts_with(start), "{message}");
    delete(&[x]);
}

#[test]
fn cpus_are_added_and_hold_parts_of_packed_tensors() {
    const TASK: &str = "/job:localhost/replica:0/task:0";
    let c = Client::new(false);
    // SAFETY: the objects live.
    unsafe {
        TFE_SetLogicalCpuDevices(c.context, 2, null(), c.status);
        c.expect_ok("a second CPU");
        TFE_SetLogicalCpuDevices(c.context, 3, null(), c.status);
        let known = format!(
            "Trying to add device {TASK}/device:CPU:1 to manager but its name conflicts with an existing device."
        );
        assert_eq!(c.outcome(), (3, known));
        let x = c.vector(&[1.0]);
        let copy =
            |name: &CStr| TFE_TensorHandleCopyToDevice(x, c.context, name.as_ptr(), c.status);
        for (name, is_known) in [
            (c"CPU:1", true),
            (c"/device:CPU:1", true),
            (c"/job:localhost/replica:0/task:0/cpu:1", true),
            (c"", true),
            (c"/cpu:1", false),
            (c"/task:0/device:CPU:1", false),
        ] {
            let copied = copy(name);
            assert_eq!(!copied.is_null(), is_known, "{name:?}");
            delete(&[copied]);
        }
        assert_eq!(c.outcome().1, "/task:0/device:CPU:1 unknown device.");
        let y = copy(c"CPU:1");
        let (mut parts, mut n) = ([x, y], 2);
        let packed =
            TFE_CreatePackedTensorHandle(c.context, parts.as_mut_ptr(), &raw mut n, c.status);
        c.expect_ok("packed");
        let device = CStr::from_ptr(TFE_TensorHandleDeviceName(packed, c.status));
        assert_eq!(
            device.to_str(),
            Ok(format!("{TASK}/device:COMPOSITE:0").as_str())
        );
        assert_eq!(TFE_TensorHandleNumElements(packed, c.status), 1);
        let negated = c.execute(c.op("Neg", &[packed]));
        assert_eq!(c.values(negated), [-1.0, -1.0], "ops read all parts");
        assert!(TFE_TensorHandleResolve(packed, c.status).is_null());
        assert_eq!(
            c.outcome().1,
            "Resolve() is not supported on packed TensorHandles."
        );
        n = 0;
        assert!(
            TFE_CreatePackedTensorHandle(c.context, null_mut(), &raw mut n, c.status).is_null()
        );
        assert_eq!(c.outcome().1, "Handles should not be empty.");
        delete(&[x, y, packed, negated]);
    }
}
