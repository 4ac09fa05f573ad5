//! Functions, gradients, handles and reports of steps.

use super::*;
use ferroflow_model::proto;
use prost::Message;

/// Takes a buffer's bytes and deletes it.
fn taken(buffer: *mut TF_Buffer) -> Vec<u8> {
    // SAFETY: the buffer lives and holds that many bytes.
    unsafe {
        let TF_Buffer { data, length, .. } = *buffer;
        let bytes = std::slice::from_raw_parts(data.cast::<u8>(), length).to_vec();
        TF_DeleteBuffer(buffer);
        bytes
    }
}

fn int_placeholder(client: &Client, name: &str, dtype: c_int) -> TF_Output {
    // SAFETY: the description lives.
    let oper = client.add("Placeholder", name, &[], |d| unsafe {
        TF_SetAttrType(d, c"dtype".as_ptr(), dtype);
    });
    TF_Output { oper, index: 0 }
}

#[test]
fn a_function_is_named_by_tensorflows_hash() {
    let client = Client::new();
    let feed = int_placeholder(&client, "feed", 3);
    let neg = TF_Output {
        oper: client.add("Neg", "neg", &[feed], |_| ()),
        index: 0,
    };
    // SAFETY: all handles live.
    unsafe {
        let function = TF_GraphToFunction(
            client.graph,
            c"func_name_base".as_ptr(),
            1,
            -1,
            null(),
            1,
            &feed,
            1,
            &neg,
            null(),
            null(),
            c"Return something".as_ptr(),
            client.status,
        );
        client.expect_ok("function");
        let name = CStr::from_ptr(TF_FunctionName(function));
        // What TensorFlow's own test expects (c_api_function_test.cc).
        assert_eq!(name.to_str(), Ok("func_name_base_qaJ8jA8UmGY"));
        TF_DeleteFunction(function);
    }
}

fn gradient(client: &Client, y: TF_Output, x: TF_Output) -> TF_Output {
    let (mut y, mut x, mut dy) = (y, x, y);
    // SAFETY: all handles live.
    unsafe {
        TF_AddGradients(
            client.graph,
            &mut y,
            1,
            &mut x,
            1,
            null_mut(),
            client.status,
            &mut dy,
        );
    }
    dy
}

#[test]
fn gradients_of_integers() {
    let client = Client::new();
    let x = int_placeholder(&client, "x", 1);
    let i = int_placeholder(&client, "i", 3);
    let arg_max = TF_Output {
        oper: client.add("ArgMax", "arg_max", &[x, i], |_| ()),
        index: 0,
    };
    let y = TF_Output {
        oper: client.add("Square", "y", &[i], |_| ()),
        index: 0,
    };
    let dy = gradient(&client, y, i);
    client.expect_ok("gradient of an int");
    assert!(!dy.oper.is_null());
    gradient(&client, arg_max, x);
    let (code, message) = client.outcome();
    assert_eq!(code, 5);
    assert!(
        message.starts_with("No gradient defined for op: ArgMax."),
        "{message}"
    );
    // No gradient flows through the axes, which depend on `x` by its rank.
    let op = |op: &str, name: &str, inputs: &[TF_Output]| TF_Output {
        oper: client.add(op, name, inputs, |_| ()),
        index: 0,
    };
    let rank = op("Rank", "rank", &[x]);
    let axes = op("Range", "axes", &[i, rank, i]);
    let sum = op("Sum", "sum", &[x, axes]);
    let dy = gradient(&client, sum, x);
    client.expect_ok("gradient of a sum");
    assert!(!dy.oper.is_null());
    // Nothing flows through this one.
    let stopped = TF_Output {
        oper: client.add("StopGradient", "stopped", &[arg_max], |_| ()),
        index: 0,
    };
    let dy = gradient(&client, stopped, x);
    client.expect_ok("no gradient");
    assert_eq!((dy.oper, dy.index), (null_mut(), -1));
    gradient(&client, y, x);
    let (code, message) = client.outcome();
    assert_eq!(code, 3);
    assert!(message.contains("unreachable"), "{message}");
}

#[test]
fn handles_say_what_they_refer_to() {
    let client = Client::new();
    let dims = [2, -1];
    // SAFETY: all handles live.
    unsafe {
        let variable = client.add("VarHandleOp", "v", &[], |d| {
            TF_SetAttrType(d, c"dtype".as_ptr(), 1);
            TF_SetAttrShape(d, c"shape".as_ptr(), dims.as_ptr(), 2);
        });
        client.expect_ok("variable");
        let variable = TF_Output {
            oper: variable,
            index: 0,
        };
        let known = taken(TF_GetHandleShapeAndType(client.graph, variable));
        let other = int_placeholder(&client, "handle", 20);
        assert!(TF_GetHandleShapeAndType(client.graph, other).is_null());
        TF_SetHandleShapeAndType(
            client.graph,
            other,
            known.as_ptr().cast(),
            known.len(),
            client.status,
        );
        client.expect_ok("set");
        assert_eq!(taken(TF_GetHandleShapeAndType(client.graph, other)), known);
        // Shape inference uses it.
        let read = client.add("ReadVariableOp", "read", &[other], |d| {
            TF_SetAttrType(d, c"dtype".as_ptr(), 1);
        });
        let read = TF_Output {
            oper: read,
            index: 0,
        };
        assert_eq!(
            TF_GraphGetTensorNumDims(client.graph, read, client.status),
            2
        );
        let garbage = [0x0a, 0xff];
        TF_SetHandleShapeAndType(
            client.graph,
            other,
            garbage.as_ptr().cast(),
            garbage.len(),
            client.status,
        );
        assert_eq!(client.outcome().0, 3);
    }
}

#[test]
fn a_step_is_reported() {
    let client = Client::new();
    let x = client.placeholder("x");
    let y = TF_Output {
        oper: client.add("Square", "y", &[x], |_| ()),
        index: 0,
    };
    let session = client.session();
    let report = |options: &proto::RunOptions| {
        let bytes = options.encode_to_vec();
        let feed = scalar(3.0);
        let mut result = null_mut();
        // SAFETY: all handles live.
        let metadata = unsafe {
            let options = TF_NewBufferFromString(bytes.as_ptr().cast(), bytes.len());
            let metadata = TF_NewBuffer();
            TF_SessionRun(
                session,
                options,
                &x,
                &feed.cast_const(),
                1,
                &y,
                &mut result,
                1,
                null(),
                0,
                metadata,
                client.status,
            );
            TF_DeleteBuffer(options);
            TF_DeleteTensor(feed);
            TF_DeleteTensor(result);
            metadata
        };
        client.expect_ok("run");
        proto::RunMetadata::decode(taken(metadata).as_slice()).expect("metadata")
    };
    assert_eq!(report(&Default::default()), proto::RunMetadata::default());
    let all = report(&proto::RunOptions {
        trace_level: proto::run_options::TraceLevel::FullTrace as i32,
        output_partition_graphs: true,
        ..Default::default()
    });
    let devices = all.step_stats.expect("statistics").dev_stats;
    let device = "/job:localhost/replica:0/task:0/device:CPU:0";
    assert_eq!((devices.len(), devices[0].device.as_str()), (1, device));
    let nodes = devices[0].node_stats.iter();
    let nodes: Vec<&str> = nodes.map(|n| n.node_name.as_str()).collect();
    assert!(
        nodes.contains(&"_SOURCE") && nodes.contains(&"y"),
        "{nodes:?}"
    );
    let graph = &all.partition_graphs[0];
    let square = graph.node.iter().find(|n| n.op == "Square");
    assert_eq!(square.map(|n| n.device.as_str()), Some(device));
    // SAFETY: the session lives.
    unsafe { TF_DeleteSession(session, client.status) };
}

/// `while i < 10 { i += 1 }`; returns the last value.
fn add_loop(client: &Client, start: TF_Output) -> TF_Output {
    let constant = |graph, value: i32| {
        let status = client.status;
        // SAFETY: all handles live; the new tensor has four bytes.
        unsafe {
            let tensor = TF_AllocateTensor(3, null(), 0, 4);
            TF_TensorData(tensor).cast::<i32>().write(value);
            let d = TF_NewOperation(graph, c"Const".as_ptr(), c"c".as_ptr());
            TF_SetAttrTensor(d, c"value".as_ptr(), tensor, status);
            TF_SetAttrType(d, c"dtype".as_ptr(), 3);
            TF_DeleteTensor(tensor);
            TF_Output {
                oper: TF_FinishOperation(d, status),
                index: 0,
            }
        }
    };
    let binary = |graph, op: &CStr, x, y| {
        // SAFETY: all handles live.
        unsafe {
            let d = TF_NewOperation(graph, op.as_ptr(), op.as_ptr());
            TF_AddInput(d, x);
            TF_AddInput(d, y);
            TF_Output {
                oper: TF_FinishOperation(d, client.status),
                index: 0,
            }
        }
    };
    let mut start = start;
    let mut last = TF_Output::NONE;
    // SAFETY: all handles live.
    unsafe {
        let mut loops = TF_NewWhile(client.graph, &mut start, 1, client.status);
        let (cond, body) = (*loops.cond_inputs, *loops.body_inputs);
        let ten = constant(loops.cond_graph, 10);
        loops.cond_output = binary(loops.cond_graph, c"Less", cond, ten);
        let one = constant(loops.body_graph, 1);
        *loops.body_outputs = binary(loops.body_graph, c"AddV2", body, one);
        loops.name = c"loop".as_ptr();
        TF_FinishWhile(&loops, client.status, &mut last);
    }
    client.expect_ok("loop");
    last
}

#[test]
fn a_loop_of_integers_has_a_gradient() {
    let client = Client::new();
    let i = int_placeholder(&client, "i", 3);
    let last = add_loop(&client, i);
    let di = gradient(&client, last, i);
    client.expect_ok("gradient");
    let session = client.session();
    // SAFETY: all handles live; tensors have four bytes.
    unsafe {
        let feed = TF_AllocateTensor(3, null(), 0, 4);
        TF_TensorData(feed).cast::<i32>().write(4);
        let mut result = null_mut();
        TF_SessionRun(
            session,
            null(),
            &i,
            &feed.cast_const(),
            1,
            &di,
            &mut result,
            1,
            null(),
            0,
            null_mut(),
            client.status,
        );
        client.expect_ok("run");
        assert_eq!(*TF_TensorData(result).cast::<i32>(), 1);
        TF_DeleteTensor(feed);
        TF_DeleteTensor(result);
        TF_DeleteSession(session, client.status);
    }
}
