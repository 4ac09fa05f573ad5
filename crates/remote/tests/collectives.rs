//! Collectives among the servers of a cluster, whose masters run a graph each or one of which runs all.

mod world;

use ferroflow_model::proto::*;
use ferroflow_model::tensor_from_proto;
use tonic::{Code, Status};
use world::{World, graph};

/// The vector that task `i` contributes.
fn part(i: usize, n: usize) -> Vec<f32> {
    (0..n).map(|k| (i + 1) as f32 + k as f32 * 0.5).collect()
}

fn vector(values: &[f32]) -> String {
    let n = values.len();
    let values: Vec<String> = values.iter().map(|v| format!("float_val: {v}")).collect();
    let shape = format!("tensor_shape {{ dim {{ size: {n} }} }}");
    format!(
        "value=tensor {{ dtype: DT_FLOAT {shape} {} }}",
        values.join(" ")
    )
}

/// The nodes of task `i` of `size`; the result is `r{i}`.
fn nodes(kind: &str, i: usize, size: usize, n: usize) -> String {
    let input = format!(
        "x{i} = Const{{dtype=type: DT_FLOAT; {}}}() @{i}\n",
        vector(&part(i, n))
    );
    let keys = format!("T=type: DT_FLOAT; group_size=i: {size}; group_key=i: 1; instance_key=i: 7");
    let shape = |n: usize| format!("shape=shape {{ dim {{ size: {n} }} }}");
    let reduce = |merge: &str, last: &str, offsets: &str| {
        format!(
            "{input}r{i} = CollectiveReduce{{{keys}; merge_op=s: '{merge}'; final_op=s: '{last}'; \
             subdiv_offsets=list {{ {offsets} }}}}(x{i}) @{i}\n"
        )
    };
    match kind {
        "add" => reduce("Add", "Id", "i: 0"),
        "mean" => reduce("Add", "Div", "i: 0"),
        "max" => reduce("Max", "Id", "i: 0"),
        "two rings" => reduce("Add", "Id", "i: 0 i: 0"),
        "chosen rings" => reduce("Add", "Id", ""),
        "gather" => format!(
            "{input}r{i} = CollectiveGather{{{keys}; {}}}(x{i}) @{i}\n",
            shape(n * size)
        ),
        "broadcast" if i == 1 => {
            format!(
                "{input}r{i} = CollectiveBcastSend{{{keys}; {}}}(x{i}) @{i}\n",
                shape(n)
            )
        }
        "broadcast" => format!(
            "r{i} = CollectiveBcastRecv{{{keys}; {}}}() @{i}\n",
            shape(n)
        ),
        other => panic!("no collective {other}"),
    }
}

fn expected(kind: &str, size: usize, n: usize) -> Vec<f32> {
    let parts: Vec<Vec<f32>> = (0..size).map(|i| part(i, n)).collect();
    let merged = |f: fn(f32, f32) -> f32| -> Vec<f32> {
        let column = |k: usize| parts.iter().map(|p| p[k]).reduce(f).unwrap();
        (0..n).map(column).collect()
    };
    match kind {
        "add" | "two rings" | "chosen rings" => merged(|a, b| a + b),
        "mean" => merged(|a, b| a + b)
            .iter()
            .map(|x| x / size as f32)
            .collect(),
        "max" => merged(f32::max),
        "gather" => parts.concat(),
        _ => parts[1].clone(),
    }
}

fn run(
    world: &World,
    task: usize,
    lines: &str,
    filter: bool,
    fetch: &[String],
) -> Result<Vec<Vec<f32>>, Status> {
    let config = ConfigProto {
        device_filters: filter
            .then(|| format!("/job:w/task:{task}"))
            .into_iter()
            .collect(),
        ..Default::default()
    };
    let request = CreateSessionRequest {
        graph_def: Some(graph(lines)),
        config: Some(config),
        ..Default::default()
    };
    let made: CreateSessionResponse = world.call(task, "MasterService/CreateSession", request)?;
    let mut values = Vec::new();
    // A second step has another number.
    for _ in 0..2 {
        let request = RunStepRequest {
            session_handle: made.session_handle.clone(),
            fetch: fetch.to_vec(),
            ..Default::default()
        };
        let answer: RunStepResponse = world.call(task, "MasterService/RunStep", request)?;
        let value = |t: &NamedTensorProto| {
            let tensor = tensor_from_proto(t.tensor.as_ref().unwrap(), None).and_then(|t| t.get());
            tensor.unwrap().slice::<f32>().unwrap().to_vec()
        };
        values = answer.tensor.iter().map(value).collect();
    }
    Ok(values)
}

/// Runs `line(i)` at each master, all at once.
fn run_each(
    world: &World,
    size: usize,
    line: impl Fn(usize) -> String + Sync,
) -> Vec<Result<Vec<f32>, Status>> {
    std::thread::scope(|scope| {
        let line = &line;
        let member = |i: usize| {
            scope.spawn(move || {
                let values = run(world, i, &line(i), true, &[format!("r{i}:0")]);
                values.map(|mut v| v.swap_remove(0))
            })
        };
        let members: Vec<_> = (0..size).map(member).collect();
        members.into_iter().map(|m| m.join().unwrap()).collect()
    })
}

#[test]
fn all_collectives() {
    for (kind, size, n) in [
        ("add", 2, 1),
        ("add", 2, 1000),
        ("mean", 3, 100),
        ("max", 4, 37),
        ("two rings", 3, 300),
        ("chosen rings", 2, 50),
        ("gather", 3, 5),
        ("gather", 2, 1),
        ("broadcast", 2, 9),
        ("broadcast", 4, 9),
    ] {
        let world = World::new(size, 0);
        let all = expected(kind, size, n);
        let each = run_each(&world, size, |i| nodes(kind, i, size, n));
        for (i, value) in each.into_iter().enumerate() {
            assert_eq!(value.unwrap(), all, "{kind} of {size}, task {i}");
        }
        // One master runs the same group.
        let lines: String = (0..size).map(|i| nodes(kind, i, size, n)).collect();
        let fetches: Vec<String> = (0..size).map(|i| format!("r{i}:0")).collect();
        let values = run(&world, 0, &lines, false, &fetches).unwrap();
        assert_eq!(values, vec![all; size], "{kind} of {size} in one session");
    }
}

#[test]
fn members_that_disagree_fail_together() {
    let world = World::new(2, 0);
    for (kinds, sizes, code, text) in [
        (
            ["add", "add"],
            [5, 6],
            Code::InvalidArgument,
            "Shape mismatch in the collective instance 7",
        ),
        (
            ["broadcast", "gather"],
            [4, 2],
            Code::Internal,
            "Collective instance 7 expected type",
        ),
    ] {
        let each = run_each(&world, 2, |i| nodes(kinds[i], i, 2, sizes[i]));
        let failed: Vec<Status> = each.into_iter().filter_map(Result::err).collect();
        assert!(
            failed
                .iter()
                .any(|e| e.code() == code && e.message().contains(text)),
            "{failed:?}"
        );
        assert_eq!(failed.len(), 2, "{failed:?}");
    }
    // The next step is not affected.
    for value in run_each(&world, 2, |i| nodes("add", i, 2, 3)) {
        assert_eq!(value.unwrap(), expected("add", 2, 3));
    }
}

#[test]
fn messages_of_others_are_checked() {
    let world = World::new(2, 0);
    let devices: GetStatusResponse = world
        .call(1, "WorkerService/GetStatus", GetStatusRequest {})
        .unwrap();
    let device = devices.device_attributes[0].clone();
    let request = RecvBufRequest {
        step_id: 1,
        buf_rendezvous_key: "1:1:0:0:0:0:0".to_string(),
        src_device: device.name.clone(),
        src_incarnation: device.incarnation + 1,
        ..Default::default()
    };
    let answer: Result<RecvBufResponse, Status> =
        world.call(1, "WorkerService/RecvBuf", request.clone());
    let error = answer.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(
        error
            .message()
            .starts_with("RecvBuf expects a different device incarnation")
    );
    let unknown = RecvBufRequest {
        src_device: "/job:w/task:1/device:GPU:0".to_string(),
        ..request
    };
    let answer: Result<RecvBufResponse, Status> = world.call(1, "WorkerService/RecvBuf", unknown);
    assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    let steps = GetStepSequenceRequest { graph_key: vec![5] };
    let answer: Result<GetStepSequenceResponse, Status> =
        world.call(1, "WorkerService/GetStepSequence", steps.clone());
    assert_eq!(answer.unwrap_err().code(), Code::Internal);
    let answer: GetStepSequenceResponse = world
        .call(0, "WorkerService/GetStepSequence", steps)
        .unwrap();
    assert_eq!(answer.step_sequence[0].graph_key, 5);
    let instance = CompleteInstanceRequest {
        group_key: 99,
        ..Default::default()
    };
    let answer: Result<CompleteInstanceResponse, Status> =
        world.call(0, "WorkerService/CompleteInstance", instance);
    assert_eq!(answer.unwrap_err().code(), Code::FailedPrecondition);
    let group = CompleteGroupRequest {
        group_size: -1,
        ..Default::default()
    };
    let answer: Result<CompleteGroupResponse, Status> =
        world.call(0, "WorkerService/CompleteGroup", group);
    assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
}
