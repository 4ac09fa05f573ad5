//! The coordination service: tasks that register, wait for each other, share values and are lost.

use crate::world;

use ferroflow_model::proto::*;
use prost::Message;
use tonic::{Code, Status};
use world::World;

const LEADER: &str = "/job:w/replica:0/task:0";

fn task(index: i32) -> Option<CoordinatedTask> {
    Some(CoordinatedTask {
        job_name: "w".to_string(),
        task_id: index,
        recoverable: false,
    })
}

/// An eager context on task `index` of a cluster whose task 0 leads the coordination of three tasks.
fn context(world: &World, index: i32) -> Result<(), Status> {
    let tasks = (0..).zip(world.addresses.clone()).collect();
    let config = CoordinationServiceConfig {
        service_type: "standalone".to_string(),
        service_leader: LEADER.to_string(),
        enable_health_check: true,
        heartbeat_timeout_in_ms: 2_000,
        allow_new_incarnation_to_reconnect: true,
        coordinated_job_list: vec![CoordinatedJob {
            name: "w".to_string(),
            num_tasks: 3,
        }],
        ..Default::default()
    };
    let session = ConfigProto {
        experimental: Some(config_proto::Experimental {
            coordination_config: Some(config),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = CreateContextRequest {
        server_def: Some(ServerDef {
            cluster: Some(ClusterDef {
                job: vec![JobDef {
                    name: "w".to_string(),
                    tasks,
                }],
            }),
            job_name: "w".to_string(),
            task_index: index,
            default_session_config: Some(session),
            protocol: "grpc".to_string(),
            ..Default::default()
        }),
        context_id: 7,
        ..Default::default()
    };
    let made: Result<CreateContextResponse, Status> =
        world.call(index as usize, "eager.EagerService/CreateContext", request);
    made.map(drop)
}

fn ask<Q, R>(world: &World, method: &str, request: Q) -> Result<R, Status>
where
    Q: Message + Default + 'static,
    R: Message + Default + 'static,
{
    world.call(0, &format!("CoordinationService/{method}"), request)
}

fn register(world: &World, index: i32, incarnation: u64) -> Result<u64, Status> {
    let request = RegisterTaskRequest {
        incarnation,
        source_task: task(index),
    };
    let answer: RegisterTaskResponse = ask(world, "RegisterTask", request)?;
    Ok(answer.leader_incarnation)
}

/// The states of the three tasks, and the code of the last one's error.
fn states(world: &World) -> (Vec<i32>, i32) {
    let request = GetTaskStateRequest {
        source_task: (0..3).filter_map(task).collect(),
    };
    let answer: GetTaskStateResponse = ask(world, "GetTaskState", request).unwrap();
    let states = answer.task_state.iter().map(|s| s.state).collect();
    (states, answer.task_state[2].error_code)
}

/// A call that must fail with this code and text, and with the payload of a coordination error.
fn check<Q>(world: &World, method: &str, request: Q, code: Code, part: &str)
where
    Q: Message + Default + 'static,
{
    let answer: Result<(), Status> = ask(world, method, request);
    let error = answer.expect_err(method);
    assert_eq!(error.code(), code, "{method}: {error}");
    assert!(error.message().contains(part), "{method}: {error}");
    let payloads = GrpcPayloadContainer::decode(error.details()).unwrap();
    let key = "type.googleapis.com/tensorflow.CoordinationServiceError";
    assert!(payloads.payloads.contains_key(key), "{method}");
}

#[test]
fn tasks_register_and_are_lost() {
    let world = World::new(3, 0);
    let heartbeat = |index, incarnation| HeartbeatRequest {
        incarnation,
        source_task: task(index),
    };
    let off = "Coordination service is not enabled.";
    check(&world, "Heartbeat", heartbeat(0, 1), Code::Internal, off);
    context(&world, 0).unwrap();
    context(&world, 1).unwrap();
    let (connected, disconnected, error) = (3, 2, 4);
    assert_eq!(states(&world).0, [connected, connected, disconnected]);
    let unregistered = "must be registered before sending heartbeat messages";
    let bad = Code::InvalidArgument;
    check(&world, "Heartbeat", heartbeat(2, 5), bad, unregistered);
    let unknown = "Unexpected heartbeat request from task: /job:w/replica:0/task:9";
    check(&world, "Heartbeat", heartbeat(9, 5), bad, unknown);
    // A task that never sends a heartbeat is lost after two seconds.
    register(&world, 2, 5).unwrap();
    let mut version = -1;
    while states(&world).0[2] != error {
        let request = WatchJobStateRequest {
            job_name: "w".to_string(),
            version_number: version,
        };
        let answer: WatchJobStateResponse = ask(&world, "WatchJobState", request).unwrap();
        assert_eq!(answer.task_state.len(), 3);
        version = answer.version_number;
    }
    assert_eq!(states(&world).1, Code::Unavailable as i32);
    // Those that run on their own have not noticed; the lost one returns with a new incarnation.
    register(&world, 2, 6).unwrap();
    assert_eq!(states(&world).0[2], connected);
    let reset = |index| ResetTaskRequest {
        source_task: task(index),
    };
    let done: Result<ResetTaskResponse, Status> = ask(&world, "ResetTask", reset(2));
    done.unwrap();
    let again = "The task is already disconnected: /job:w/replica:0/task:2";
    check(
        &world,
        "ResetTask",
        reset(2),
        Code::FailedPrecondition,
        again,
    );
    let states = GetTaskStateRequest {
        source_task: task(8).into_iter().collect(),
    };
    let unknown = "/job:w/replica:0/task:8 is not a task of the coordination service";
    check(&world, "GetTaskState", states, bad, unknown);
}

#[test]
fn values_and_barriers_are_shared() {
    let world = World::new(2, 0);
    context(&world, 0).unwrap();
    let insert = |value: &[u8]| InsertKeyValueRequest {
        kv: Some(KeyValueEntry {
            key: "a/b".to_string(),
            value: value.to_vec().into(),
        }),
        allow_overwrite: false,
    };
    let got = std::thread::scope(|scope| {
        let get = scope.spawn(|| {
            let request = GetKeyValueRequest {
                key: "/a//b".to_string(),
            };
            let answer: GetKeyValueResponse = ask(&world, "GetKeyValue", request).unwrap();
            answer.kv.unwrap().value
        });
        let _: InsertKeyValueResponse = ask(&world, "InsertKeyValue", insert(b"1")).unwrap();
        get.join().unwrap()
    });
    assert_eq!(&got[..], b"1");
    let exists = "Config key a/b already exists.";
    check(
        &world,
        "InsertKeyValue",
        insert(b"2"),
        Code::AlreadyExists,
        exists,
    );
    let missing = TryGetKeyValueRequest {
        key: "c".to_string(),
    };
    check(
        &world,
        "TryGetKeyValue",
        missing,
        Code::NotFound,
        "Config key c not found.",
    );

    register(&world, 1, 5).unwrap();
    let barrier = |index, counter, tasks: &[i32], timeout| BarrierRequest {
        barrier_id: "b".to_string(),
        barrier_timeout_in_ms: timeout,
        tasks: tasks.iter().filter_map(|i| task(*i)).collect(),
        source_task: task(index),
        counter,
    };
    for counter in 0..2 {
        std::thread::scope(|scope| {
            for index in 0..2 {
                let request = barrier(index, counter, &[0, 1], 60_000);
                let world = &world;
                scope.spawn(move || {
                    let passed: BarrierResponse = ask(world, "Barrier", request).unwrap();
                    assert_eq!(passed.counter, counter);
                });
            }
        });
    }
    let wrong = barrier(0, 7, &[0, 1], 60_000);
    let text =
        "Barrier (b::7) is invoked by the task, but the service thinks it is the 1-th instance.";
    check(&world, "Barrier", wrong, Code::Internal, text);
    let others = BarrierRequest {
        barrier_id: "c".to_string(),
        ..barrier(0, 0, &[1], 60_000)
    };
    let text = "A non-participating task (/job:w/replica:0/task:0) called the barrier: c::0";
    check(&world, "Barrier", others, Code::InvalidArgument, text);
    let late = BarrierRequest {
        barrier_id: "d".to_string(),
        ..barrier(0, 0, &[0, 1], 1)
    };
    let text = "Barrier timed out. Id: d::0.";
    check(&world, "Barrier", late, Code::DeadlineExceeded, text);
    let alive = GetAliveTasksRequest {
        requesting_task: task(0),
        tasks: task(1).into_iter().collect(),
    };
    let text = "is not one of the tasks specified in a GetAliveTasks request.";
    check(&world, "GetAliveTasks", alive, Code::InvalidArgument, text);
}
