//! Sessions over up to a thousand tasks in this process: what a task costs does not depend on the number of tasks,
//! as far as that can be counted.

use crate::ring;

use ferroflow_model::graph_from_text;
use ferroflow_model::proto::*;
use ferroflow_remote::{LocalCluster, Traffic};
use ferroflow_runtime::CancelToken;
use ring::Client;
use std::collections::BTreeMap;

/// Waits until the tasks have been told of the end of every step. A step that one of them keeps is an endless loop.
fn drain(cluster: &LocalCluster) {
    while cluster.num_steps() > 0 {
        std::thread::yield_now();
    }
}

/// The calls that a session over `n` tasks makes, by what the client does, with the bytes of one call.
fn calls(n: u32) -> BTreeMap<String, Traffic> {
    let cluster = LocalCluster::new(n, 2).unwrap();
    let traffic = |what: &str| -> BTreeMap<String, Traffic> {
        let taken = cluster.take_traffic().into_iter();
        taken
            .map(|(method, t)| (format!("{what}: {method}"), t))
            .collect()
    };
    let client = Client::new(&cluster, ring::graph(n).unwrap()).unwrap();
    let mut all = traffic("create");
    let sum = client.callable(vec!["sum:0".to_string()]).unwrap();
    all.extend(traffic("plan"));
    for x in [1.0, 2.0, 3.0] {
        assert_eq!(client.step(sum, x).unwrap(), [ring::sum(n, x)]);
        drain(&cluster);
        all.extend(traffic(&format!("step {x}")));
    }
    let fetches = (0..n).map(|t| format!("z{t}:0")).collect();
    let fetched = client.callable(fetches).unwrap();
    all.extend(traffic("plan fetches"));
    let expected: Vec<f32> = (0..n).map(|t| ring::z(n, t, 5.0)).collect();
    assert_eq!(client.step(fetched, 5.0).unwrap(), expected);
    drain(&cluster);
    all.extend(traffic("step of fetches"));
    client.close().unwrap();
    all
}

#[test]
fn a_task_costs_the_same_among_ten_and_a_thousand() {
    let few = calls(10);
    for n in [10, 100, 1000] {
        let (all, others) = (calls(n), n as usize - 1);
        assert!(all.keys().eq(few.keys()), "{:?}", all.keys());
        for (what, traffic) in all {
            // The tensors that go to another task: x to all but task 0, y in a ring, and z back to task 0.
            let expected = match what.as_str() {
                "step of fetches: RecvTensor" => 2 * others + 1,
                what if what.ends_with("RecvTensor") => 3 * others + 1,
                _ => others,
            };
            assert_eq!(traffic.calls, expected, "{what} of {n} tasks");
            // Numbers of tasks have up to three digits more.
            let per_call = |t: &Traffic| (t.sent + t.received) as f64 / t.calls as f64;
            let ratio = per_call(&traffic) / per_call(&few[&what]);
            assert!(
                ratio < 1.25,
                "{what} of {n} tasks has {ratio} times the bytes"
            );
        }
    }
}

#[test]
fn a_step_that_is_cleaned_up_before_its_call_leaves_nothing() {
    let cluster = LocalCluster::new(1, 2).unwrap();
    let worker = cluster.worker(0).unwrap();
    let register = RegisterGraphRequest {
        graph_def: Some(
            graph_from_text("node { name: 'n' op: 'NoOp' device: '/job:w/task:0' }").unwrap(),
        ),
        ..Default::default()
    };
    let graph_handle = worker.register_graph(register).unwrap().graph_handle;
    let run = |step_id, is_partial| {
        let request = RunGraphRequest {
            graph_handle: graph_handle.clone(),
            step_id,
            is_partial,
            is_last_partial_run: is_partial,
            ..Default::default()
        };
        worker.run_graph(request, &CancelToken::new()).map(drop)
    };
    for (step_id, is_partial) in [(1, false), (2, true)] {
        // Peers may ask for tensors of a step until it is cleaned up.
        run(step_id, is_partial).unwrap();
        assert_eq!(cluster.num_steps(), 1);
        worker.cleanup_graph(CleanupGraphRequest { step_id });
        assert_eq!(cluster.num_steps(), 0);
        // The call may run or fail: its master has given it up.
        drop(run(step_id, is_partial));
        assert_eq!(cluster.num_steps(), 0, "after its end");
    }
}

#[test]
fn errors_of_brief_parts_end_the_step_on_all_tasks() {
    let cluster = LocalCluster::new(3, 2).unwrap();
    let float = "attr { key: 'T' value { type: DT_FLOAT } }";
    let message = "attr { key: 'message' value { s: 'bad' } }";
    let text = format!(
        "node {{ name: 'x' op: 'Placeholder' device: '/job:w/task:0' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} }}
         node {{ name: 'l' op: 'Log' input: 'x' device: '/job:w/task:1' {float} }}
         node {{ name: 'c' op: 'CheckNumerics' input: 'l' device: '/job:w/task:1' {float} {message} }}
         node {{ name: 'y' op: 'Neg' input: 'c' device: '/job:w/task:2' {float} }}
         node {{ name: 'z' op: 'AddV2' input: 'y' input: 'x' device: '/job:w/task:0' {float} }}"
    );
    let client = Client::new(&cluster, graph_from_text(&text).unwrap()).unwrap();
    let handle = client.callable(vec!["z:0".to_string()]).unwrap();
    for _ in 0..10 {
        assert_eq!(client.step(handle, 1.0).unwrap(), [1.0]);
        let failed = client.step(handle, -1.0).expect_err("not a number");
        let text = failed.message();
        assert!(text.contains("bad : Tensor had NaN values"), "{text}");
        assert!(text.contains("/job:w/replica:0/task:1"), "{text}");
        drain(&cluster);
    }
    client.close().unwrap();
}
