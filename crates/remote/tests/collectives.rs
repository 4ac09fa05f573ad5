//! Collectives among the servers of a cluster, whose masters run a graph each or one of which runs all.

use crate::world;

use ferroflow_model::proto::*;
use ferroflow_model::tensor_from_proto;
use prost::Message;
use std::time::Duration;
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
    steps: usize,
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
    for _ in 0..steps {
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

/// Runs `line(i)` at each master, all at once. A second step has another number.
fn run_each(
    world: &World,
    size: usize,
    steps: usize,
    line: impl Fn(usize) -> String + Sync,
) -> Vec<Result<Vec<f32>, Status>> {
    std::thread::scope(|scope| {
        let line = &line;
        let member = |i: usize| {
            scope.spawn(move || {
                let values = run(world, i, &line(i), true, steps, &[format!("r{i}:0")]);
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
        let each = run_each(&world, size, 2, |i| nodes(kind, i, size, n));
        for (i, value) in each.into_iter().enumerate() {
            assert_eq!(value.unwrap(), all, "{kind} of {size}, task {i}");
        }
        // One master runs the same group.
        let lines: String = (0..size).map(|i| nodes(kind, i, size, n)).collect();
        let fetches: Vec<String> = (0..size).map(|i| format!("r{i}:0")).collect();
        let values = run(&world, 0, &lines, false, 2, &fetches).unwrap();
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
        let each = run_each(&world, 2, 2, |i| nodes(kinds[i], i, 2, sizes[i]));
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
    for value in run_each(&world, 2, 2, |i| nodes("add", i, 2, 3)) {
        assert_eq!(value.unwrap(), expected("add", 2, 3));
    }
}

/// A loop whose counter is on task 0, and which adds the values of both tasks in each iteration. `values` are those
/// before the first one.
fn loop_of_sums(frame: char, iterations: usize, values: [f32; 2]) -> String {
    let scalar = |name: &str, value: f32, task: usize| {
        format!(
            "{name}{frame} = Const{{dtype=type: DT_FLOAT; value=tensor {{ dtype: DT_FLOAT tensor_shape {{ }} \
             float_val: {value} }}}}() @{task}\n"
        )
    };
    let enter = |name: &str, of: &str, task: usize, constant: bool| {
        format!(
            "e{name}{frame} = Enter{{T=type: DT_FLOAT; frame_name=s: '{frame}'; is_constant=b: {constant}; \
             parallel_iterations=i: 10}}({of}{frame}) @{task}\n"
        )
    };
    let mut lines = scalar("zero", 0.0, 0) + &scalar("one", 1.0, 0);
    lines += &scalar("n", iterations as f32, 0);
    lines += &enter("i", "zero", 0, false);
    lines += &enter("n", "n", 0, true);
    lines += &enter("o", "one", 0, true);
    lines += &format!(
        "mi{frame} = Merge{{T=type: DT_FLOAT; N=i: 2}}(ei{frame}, ni{frame}) @0
        p{frame} = Less{{T=type: DT_FLOAT}}(mi{frame}, en{frame}) @0
        c{frame} = LoopCond(p{frame}) @0
        si{frame} = Switch{{T=type: DT_FLOAT}}(mi{frame}, c{frame}) @0
        i2{frame} = AddV2{{T=type: DT_FLOAT}}(si{frame}:1, eo{frame}) @0
        ni{frame} = NextIteration{{T=type: DT_FLOAT}}(i2{frame}) @0\n"
    );
    for (task, value) in values.into_iter().enumerate() {
        let (a, f) = (format!("v{task}"), frame);
        lines += &scalar(&a, value, task);
        lines += &enter(&a, &a, task, false);
        lines += &format!(
            "m{a}{f} = Merge{{T=type: DT_FLOAT; N=i: 2}}(e{a}{f}, n{a}{f}) @{task}
            s{a}{f} = Switch{{T=type: DT_FLOAT}}(m{a}{f}, c{f}) @{task}
            r{a}{f} = CollectiveReduce{{T=type: DT_FLOAT; group_size=i: 2; group_key=i: 1; instance_key=i: 7; \
             merge_op=s: 'Add'; final_op=s: 'Id'; subdiv_offsets=list {{ i: 0 }}}}(s{a}{f}:1) @{task}
            n{a}{f} = NextIteration{{T=type: DT_FLOAT}}(r{a}{f}) @{task}
            x{a}{f} = Exit{{T=type: DT_FLOAT}}(s{a}{f}) @{task}\n"
        );
    }
    lines
}

#[test]
fn loops_of_different_lengths_share_keys() {
    let world = World::new(2, 0);
    let lines = loop_of_sums('f', 5, [1.0, 2.0]) + &loop_of_sums('g', 3, [100.0, 200.0]);
    let fetches = ["xv0f:0", "xv1f:0", "xv0g:0", "xv1g:0"].map(str::to_string);
    let values = run(&world, 0, &lines, false, 3, &fetches).unwrap();
    // Each iteration doubles the sum of the first.
    assert_eq!(values, [[48.0], [48.0], [1200.0], [1200.0]]);
}

/// TensorFlow's id of the frame `f` of a graph.
const FRAME_F: u64 = 12862229943350002202;

#[test]
fn iterations_have_keys_of_their_own() {
    let world = World::new(2, 0);
    let status = |task: usize| -> GetStatusResponse {
        let status = world.call(task, "WorkerService/GetStatus", GetStatusRequest {});
        status.unwrap()
    };
    let devices = [0, 1].map(|task| status(task).device_attributes[0].clone());
    let sequence = GetStepSequenceRequest { graph_key: vec![5] };
    let answer: GetStepSequenceResponse = world
        .call(0, "WorkerService/GetStepSequence", sequence)
        .unwrap();
    let step_id = answer.step_sequence[0].next_step_id;
    // What an iteration sends does not depend on what the one before receives.
    let lines = loop_of_sums('f', 3, [1.0, 2.0]);
    let own = lines.lines().filter(|line| !line.ends_with("@1"));
    let lines: Vec<&str> = own.collect();
    let lines = lines.join("\n").replace("(sv0f:1) @0", "(sif:1) @0");
    std::thread::scope(|scope| {
        let step = scope.spawn(|| {
            let request = CreateSessionRequest {
                graph_def: Some(graph(&lines)),
                config: Some(ConfigProto {
                    device_filters: vec!["/job:w/task:0".to_string()],
                    ..Default::default()
                }),
                ..Default::default()
            };
            let made: CreateSessionResponse =
                world.call(0, "MasterService/CreateSession", request)?;
            let options = RunOptions {
                experimental: Some(run_options::Experimental {
                    collective_graph_key: 5,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let request = RunStepRequest {
                session_handle: made.session_handle,
                fetch: vec!["xv0f:0".to_string()],
                options: Some(options),
                ..Default::default()
            };
            world.call::<_, RunStepResponse>(0, "MasterService/RunStep", request)
        });
        // This test is the other member.
        let join = CompleteGroupRequest {
            group_key: 1,
            group_size: 2,
            device_type: "CPU".to_string(),
            device_attributes: Some(devices[1].clone()),
            ..Default::default()
        };
        let _: CompleteGroupResponse = world.call(0, "WorkerService/CompleteGroup", join).unwrap();
        for iteration in [2, 0, 1] {
            let request = RecvBufRequest {
                step_id,
                buf_rendezvous_key: format!("1:7:{FRAME_F}:{iteration}:0:0:0"),
                num_bytes: 4,
                src_device: devices[0].name.clone(),
                dst_device: devices[1].name.clone(),
                ..Default::default()
            };
            let answer: RecvBufResponse = world.call(0, "WorkerService/RecvBuf", request).unwrap();
            let sent = answer.transport_options.unwrap();
            let sent = RecvBufRespExtra::decode(&sent.value[..]).unwrap();
            let expected = (iteration as f32).to_le_bytes();
            assert_eq!(sent.tensor_content.concat(), expected, "{iteration}");
        }
        // Nothing of the other member will come. What the step asks for after a cleanup waits for the next one.
        while !step.is_finished() {
            let end = CleanupGraphRequest { step_id };
            let _: CleanupGraphResponse = world.call(1, "WorkerService/CleanupGraph", end).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(step.join().unwrap().is_err());
    });
}

fn ints(name: &str, values: &[i32], dims: &[usize], task: usize) -> String {
    let dims: String = dims
        .iter()
        .map(|d| format!("dim {{ size: {d} }} "))
        .collect();
    let values: String = values.iter().map(|v| format!("int_val: {v} ")).collect();
    format!(
        "{name} = Const{{dtype=type: DT_INT32; value=tensor {{ dtype: DT_INT32 tensor_shape {{ {dims}}} \
         {values}}}}}() @{task}\n"
    )
}

/// The communicator `c{i}` of task `i`, and what a collective of it takes.
fn communicator(i: usize, rank: i32, size: i32) -> String {
    ints(&format!("g{i}"), &[3], &[], i)
        + &ints(&format!("k{i}"), &[rank], &[], i)
        + &ints(&format!("z{i}"), &[size], &[], i)
        + &ints(&format!("all{i}"), &[], &[0, 0], i)
        + &format!("c{i} = CollectiveInitializeCommunicator(g{i}, k{i}, z{i}) @{i}\n")
        + &format!(
            "x{i} = Const{{dtype=type: DT_FLOAT; {}}}() @{i}\n",
            vector(&[10.0 * i as f32, 10.0 * i as f32 + 1.0])
        )
}

#[test]
fn communicators_of_several_tasks() {
    let world = World::new(2, 0);
    // One collective behind the other, as they are numbered in the order in which they start.
    let each = run_each(&world, 2, 1, |i| {
        communicator(i, 1 - i as i32, 2)
            + &format!(
                "y{i} = CollectiveAllToAllV3{{T=type: DT_FLOAT}}(x{i}, c{i}, all{i}) @{i}
                s{i} = CollectiveReduceV3{{T=type: DT_FLOAT; reduction=s: 'Max'}}(y{i}, c{i}, all{i}) @{i}
                r{i} = AddV2{{T=type: DT_FLOAT}}(y{i}, s{i}) @{i}\n"
            )
    });
    // Member 0 is task 1: it gets 10 of itself and 0 of task 0.
    let each: Result<Vec<Vec<f32>>, Status> = each.into_iter().collect();
    assert_eq!(each.unwrap(), [[22.0, 2.0], [21.0, 1.0]]);
    let world = World::new(2, 0);
    let lines: String = [0, 1].map(|i| communicator(i, i as i32, 2)).concat();
    let sums = [0, 1].map(|i| {
        format!("r{i} = CollectiveReduceV3{{T=type: DT_FLOAT; reduction=s: 'Add'}}(x{i}, c{i}, all{i}) @{i}\n")
    });
    let fetches = ["r0:0", "r1:0"].map(str::to_string);
    let values = run(&world, 0, &(lines + &sums.concat()), false, 1, &fetches).unwrap();
    assert_eq!(values, [[10.0, 12.0], [10.0, 12.0]]);
}

#[test]
fn ranks_of_communicators_are_checked() {
    for (ranks, text) in [
        (
            [0, 0],
            "Duplicate ranks specified for group members. Received ranks: 0,0",
        ),
        ([0, 2], "rank must be less than group size but got 2 >= 2"),
    ] {
        let world = World::new(2, 0);
        let line = |i: usize| {
            communicator(i, ranks[i], 2)
                + &format!(
                    "r{i} = CollectiveReduceV3{{T=type: DT_FLOAT; reduction=s: 'Add'; timeout_seconds=f: 30}}(x{i}, c{i}, all{i}) @{i}\n"
                )
        };
        let task = usize::from(ranks[1] == 2);
        let error = match task {
            // Both members wait for each other.
            0 => run_each(&world, 2, 1, line).swap_remove(0).unwrap_err(),
            _ => run(&world, 1, &line(1), true, 1, &["r1:0".to_string()]).unwrap_err(),
        };
        assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
        assert!(error.message().contains(text), "{error:?}");
    }
}

#[test]
fn groups_are_assigned_among_tasks() {
    let world = World::new(4, 0);
    // The sum of all keeps the tasks in the same step: the leader tells a task that begins later than the leader
    // ends the id of the next one.
    let each = run_each(&world, 4, 2, |i| {
        ints(&format!("a{i}"), &[0, 2, 1, 3], &[2, 2], i)
            + &ints(&format!("d{i}"), &[i as i32], &[], i)
            + &ints(&format!("b{i}"), &[20], &[], i)
            + &ints(&format!("n{i}"), &[7], &[], i)
            + &format!(
                "x{i} = Const{{dtype=type: DT_FLOAT; {}}}() @{i}
                g{i} = CollectiveAssignGroupV2(a{i}, d{i}, b{i}) @{i}
                s{i} = CollectiveReduceV2{{T=type: DT_FLOAT; merge_op=s: 'Add'; final_op=s: 'Id'; \
                 Nordering_token=i: 0}}(x{i}, g{i}, g{i}:1, n{i}) @{i}
                t{i} = CollectiveReduce{{T=type: DT_FLOAT; group_size=i: 4; group_key=i: 1; instance_key=i: 7; \
                 merge_op=s: 'Add'; final_op=s: 'Id'; subdiv_offsets=list {{ i: 0 }}}}(x{i}) @{i}
                r{i} = AddV2{{T=type: DT_FLOAT}}(s{i}, t{i}) @{i}\n",
                vector(&[i as f32])
            )
    });
    let each: Result<Vec<Vec<f32>>, Status> = each.into_iter().collect();
    // Two groups of two, and all four.
    assert_eq!(each.unwrap(), [[8.0], [10.0], [8.0], [10.0]]);
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
    for (device_attributes, code) in [
        (Some(device), Code::InvalidArgument),
        (None, Code::Internal),
    ] {
        let group = CompleteGroupRequest {
            group_size: -1,
            device_attributes,
            ..Default::default()
        };
        let answer: Result<CompleteGroupResponse, Status> =
            world.call(0, "WorkerService/CompleteGroup", group);
        assert_eq!(answer.unwrap_err().code(), code);
    }
}
