//! Which ops have gradients, against TensorFlow's list (`kernels/rows/gradients.txt`, written by
//! `oracle/differentiable.py`).

use ferroflow_opdef::GradientRule;
use ferroflow_runtime::registry;
use std::collections::BTreeSet;
use std::path::Path;

/// Ops that the walk backwards turns round itself.
const FLOW: &str = "
    Case Enter Exit If LoopCond Merge NextIteration RefEnter RefExit RefMerge RefNextIteration
    RefSwitch StatelessCase StatelessIf StatelessWhile Switch While
";

/// Ops whose gradient function, in TensorFlow, gives none.
const JUMPS: &str = "Ceil Floor FloorDiv Rint Round TruncateDiv";

/// Ops that TensorFlow differentiates and Ferroflow does not yet.
const MISSING: &str = "
    ArgMax ArgMin BatchNormWithGlobalNormalization BiasAddGrad CropAndResize Dilation2D
    DynamicPartition DynamicStitch ExtractImagePatches FusedBatchNormGrad FusedBatchNormGradV2
    FusedBatchNormGradV3 MaxPoolGradV2 OptionalFromValue OptionalGetValue ParallelDynamicStitch
    Print QuantizeAndDequantizeV4Grad RaggedTensorFromVariant RaggedTensorToVariant RandomGamma
    RefIdentity TensorArrayConcat TensorArrayConcatV2 TensorArrayGather TensorArrayGatherV2
    TensorArrayRead TensorArrayReadV2 TensorArrayScatter TensorArrayScatterV2 TensorArraySplit
    TensorArraySplitV2 TensorArrayWrite TensorArrayWriteV2
";

/// Ops whose inputs have no gradient in TensorFlow, while asking Ferroflow for one is still an error.
const UNSAID: &str = "
    ApproximateEqual Assert Assign AssignAdd AssignSub BitwiseAnd BitwiseOr BitwiseXor
    BroadcastGradientArgs DecodePaddedRaw DecodeRaw Equal Greater GreaterEqual HashTableV2
    HistogramSummary InitializeTableFromTextFileV2 InitializeTableV2 Invert InvertPermutation
    LeftShift Less LessEqual LogicalAnd LogicalNot LogicalOr LookupTableFindV2 LookupTableInsertV2
    LookupTableSizeV2 MergeSummary Multinomial MutableDenseHashTableV2 MutableHashTableOfTensorsV2
    MutableHashTableV2 NotEqual ParseTensor PopulationCount RandomShuffle RandomStandardNormal
    RandomUniform ResizeBilinearGrad RightShift ScalarSummary ScatterAdd ScatterDiv ScatterMul
    ScatterNdAdd ScatterNdSub ScatterNdUpdate ScatterSub SerializeTensor Stack StackClose StackPop
    StackPush StatelessMultinomial StatelessRandomNormal StatelessRandomNormalV2
    StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
    StatelessTruncatedNormal StatelessTruncatedNormalV2 TensorArray TensorArrayClose
    TensorArrayCloseV2 TensorArrayCloseV3 TensorArrayGrad TensorArrayGradV2 TensorArraySize
    TensorArraySizeV2 TensorArrayV2 TensorListConcatLists TensorListPushBackBatch TruncatedNormal
";

fn names(list: &str) -> BTreeSet<&str> {
    list.split_whitespace().collect()
}

#[test]
fn every_op_that_tensorflow_differentiates_has_a_gradient() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/rows/gradients.txt");
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
    // Both ways: who adds a rule takes the op off its list.
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
