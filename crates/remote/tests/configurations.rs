//! What the configurations of servers and sessions change.

use crate::world;

use ferroflow_model::proto::*;
use ferroflow_model::tensor_to_proto;
use ferroflow_remote::Security;
use ferroflow_tensor::Tensor;
use tonic::Code;
use world::World;

const X: &str = "x = Placeholder{dtype=type: DT_FLOAT}() @0\n";
const T: &str = "{T=type: DT_FLOAT}";

#[test]
fn sessions_begin_with_the_configuration_of_the_server() {
    let filtered = ConfigProto {
        device_filters: vec!["/job:w/task:0".to_string()],
        ..Default::default()
    };
    // Task 1 does not answer, but no session asks it.
    let world = World::configured(1, 1, &Security::default(), &filtered);
    let lines = format!("{X}y = Neg{T}(x)");
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    assert_eq!(world.step(&session, 2.0, "y:0", "").unwrap(), -2.0);
    let elsewhere = format!("{X}y = Neg{T}(x) @1");
    let error = world
        .session(&elsewhere, ConfigProto::default())
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
}

#[test]
fn clients_ask_for_placement_by_costs() {
    let world = World::new(2, 0);
    let optimizer = rewriter_config::CustomGraphOptimizer {
        name: "cost_placement".to_string(),
        ..Default::default()
    };
    let by_costs = ConfigProto {
        graph_options: Some(GraphOptions {
            rewrite_options: Some(RewriterConfig {
                custom_optimizers: vec![optimizer],
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    // Two products of large matrices, which two tasks compute at the same time.
    let matrix = "{dtype=type: DT_FLOAT; value=tensor { dtype: DT_FLOAT tensor_shape { dim { size: 600 } dim { size: 600 } } \
                  float_val: 1 }}";
    let lines = format!(
        "{X}m = Const{matrix}()\na0 = Mul{T}(m, x)\nb0 = AddV2{T}(m, x)\na = MatMul{T}(a0, a0)\n\
         b = MatMul{T}(b0, b0)\ns = AddV2{T}(a, b)\nd = Const{{dtype=type: DT_INT32; value=tensor {{ dtype: DT_INT32 \
         tensor_shape {{ dim {{ size: 2 }} }} int_val: [0, 1] }}}}()\ny = Sum{{T=type: DT_FLOAT; Tidx=type: DT_INT32}}(s, d)"
    );
    let options = RunOptions {
        output_partition_graphs: true,
        ..Default::default()
    };
    for (config, n_tasks) in [(ConfigProto::default(), 1), (by_costs, 2)] {
        let session = world.session(&lines, config).unwrap();
        let request = RunStepRequest {
            session_handle: session,
            feed: vec![NamedTensorProto {
                name: "x:0".to_string(),
                tensor: Some(tensor_to_proto(&Tensor::scalar(1f32)).unwrap()),
            }],
            fetch: vec!["y:0".to_string()],
            options: Some(options),
            ..Default::default()
        };
        let answer: RunStepResponse = world.call(0, "MasterService/RunStep", request).unwrap();
        let graphs = answer.metadata.unwrap().partition_graphs;
        assert_eq!(graphs.len(), n_tasks);
    }
}
