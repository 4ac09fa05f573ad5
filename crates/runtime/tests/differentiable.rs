//! Which ops have gradients, against TensorFlow's list (`ops/rows/gradients.txt`, written by
//! `oracle/differentiable.py`).

use ferroflow_opdef::GradientRule;
use ferroflow_runtime::registry;
use ferroflow_testkit::cases;
use std::collections::BTreeSet;
use std::path::Path;

/// Ops that the walk backwards turns round itself.
const FLOW: &str = "
    Case Enter Exit If LoopCond Merge NextIteration RefEnter RefExit RefMerge RefNextIteration
    RefSwitch StatelessCase StatelessIf StatelessWhile Switch While
";

/// Ops whose gradient function, in TensorFlow, returns none.
const JUMPS: &str = "ArgMax ArgMin Ceil Floor FloorDiv Rint Round TruncateDiv";

/// Ops that TensorFlow has a function for and Ferroflow has not, because that function fails: it
/// returns three gradients for four inputs; that of EagerPyFunc is a function of Python.
const MISSING: &str = "EagerPyFunc QuantizeAndDequantizeV4Grad";

/// Ops whose inputs have no gradient in TensorFlow, while asking Ferroflow for one is an error: a
/// second derivative through them would be wrong without a word.
const UNSAID: &str = "TensorArrayGrad TensorArrayGradV2 TensorArrayGradV3 TensorArrayGradWithShape";

/// Ops with a gradient that no graph of `tests/gradients` has, but `variable_gradients.rs`, or that
/// fail on purpose; TensorFlow's of BlockLSTMV2 takes the gates in the order of BlockLSTM, and that of
/// the debugging identities asks a debugger; TensorFlow builds no graph of QuantizeAndDequantize.
const WITHOUT_ROWS: &str = "
    BlockLSTMV2 DebugGradientIdentity DebugGradientRefIdentity DebugIdentityV2 PreventGradient QuantizeAndDequantize ReadVariableOp RefIdentity ResourceGather ResourceGatherNd
    SparseDenseCwiseAdd SparseSparseMaximum SparseSparseMinimum
";

fn names(list: &str) -> BTreeSet<&str> {
    list.split_whitespace().collect()
}

#[test]
fn every_op_that_tensorflow_differentiates_has_a_gradient() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/rows/gradients.txt");
    let text = std::fs::read_to_string(path).expect("rows/gradients.txt");
    let (flow, jumps) = (names(FLOW), names(JUMPS));
    let (mut missing, mut unsaid, mut wrong) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for line in text.lines().skip(1) {
        let (name, rule) = line.split_once(' ').expect("an op and its rule");
        let Some(op) = registry().op(name) else {
            continue;
        };
        match (rule, op.gradient) {
            ("function", GradientRule::Function(_)) | ("none", GradientRule::None) => {}
            ("function", GradientRule::None) if jumps.contains(name) => {}
            ("function", GradientRule::Undefined) if flow.contains(name) => {}
            ("function", GradientRule::Undefined) => _ = missing.insert(name),
            ("none", GradientRule::Undefined) => _ = unsaid.insert(name),
            _ => _ = wrong.insert(name),
        }
    }
    let none = BTreeSet::new();
    // Both directions: adding a rule removes the op from its list.
    for (what, found, listed) in [
        ("has no gradient", &missing, &names(MISSING)),
        ("has none, which is not said", &unsaid, &names(UNSAID)),
        ("differs from TensorFlow", &wrong, &none),
    ] {
        let [new, gone] = [found - listed, listed - found];
        assert!(new.is_empty(), "{what}: {new:?}");
        assert!(
            gone.is_empty(),
            "{what}, says a list, no longer true: {gone:?}"
        );
    }
}

/// Each gradient function that an op has in TensorFlow is compared with TensorFlow's values.
#[test]
fn every_gradient_has_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/rows/gradients.txt");
    let text = std::fs::read_to_string(path).expect("rows/gradients.txt");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gradients");
    let rows = cases::ops(&folder);
    let with_gradient = text.lines().filter_map(|line| {
        let name = line.strip_suffix(" function")?;
        let rule = registry().op(name)?.gradient;
        matches!(rule, GradientRule::Function(_)).then_some(name)
    });
    let without: BTreeSet<&str> = with_gradient.filter(|n| !rows.contains(*n)).collect();
    assert_eq!(without, names(WITHOUT_ROWS));
}
