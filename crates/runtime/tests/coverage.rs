//! Every registered op has a golden row (`ops/rows`), or is part of a graph that TensorFlow
//! answered (`tests/graphs`, `tests/gradients`), or is named below with the test that has it.

use ferroflow_runtime::registry;
use ferroflow_testkit::{cases, rows};
use std::collections::BTreeSet;
use std::path::Path;

/// Ops that neither a row nor a stored graph can hold, with the test or reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "tests/readers.rs: they read files",
        "FixedLengthRecordReader FixedLengthRecordReaderV2 IdentityReader IdentityReaderV2 MatchingFiles \
         ReadFile ReaderNumRecordsProduced ReaderNumRecordsProducedV2 ReaderNumWorkUnitsCompleted \
         ReaderNumWorkUnitsCompletedV2 ReaderRead ReaderReadUpTo ReaderReadUpToV2 ReaderReadV2 \
         ReaderReset ReaderResetV2 ReaderRestoreState ReaderRestoreStateV2 ReaderSerializeState \
         ReaderSerializeStateV2 TFRecordReader TFRecordReaderV2 TextLineReader TextLineReaderV2 \
         WholeFileReader WholeFileReaderV2",
    ),
    (
        "tests/stateful_ops.rs: their effects are files and resources",
        "CloseSummaryWriter DeleteSessionTensor FlushSummaryWriter \
         GetSessionHandle GetSessionHandleV2 GetSessionTensor ImportEvent ResourceCreateOp \
         ResourceInitializedOp ResourceUsingOp StubResourceHandleOp \
         WriteAudioSummary WriteGraphSummary WriteHistogramSummary WriteImageSummary \
         WriteRawProtoSummary WriteScalarSummary WriteSummary",
    ),
    (
        "tests/summary_database.rs: it writes a database",
        "CreateSummaryDbWriter",
    ),
    (
        "only passes and importers make them: the graphs run with and without passes, and \
         ops/tests/nn.rs and tests/fused_updates.rs compare the fused ones with their parts",
        "_Arg _Cluster _Dense _DestroyTemporaryVariable _ForNext _ForStart _ForTest _FusedConv2D _FusedConv3D \
         _FusedDepthwiseConv2dNative _FusedElementwise _FusedMatMul _Gelu _GeluTanh _HardSwish \
         _LayerNorm _MatMulApplyAdagrad _MatMulApplyAdam _MatMulApplyGradientDescent \
         _MatMulApplyMomentum _MatMulApplyRMSProp _OneShotIterator _Retval _SdcaShrinkL1 _SelectHandle \
         _Swish _TemporaryVariable _TemporaryVariableName _Threefry2x32 \
         _VarHandlesOp",
    ),
    (
        "compiled models have it: tests/compiled.rs",
        "_FrozenTableFind",
    ),
    (
        "the pass int8 makes them: tests/int8.rs and primitives/src/int8/tests.rs",
        "_Int8Combine _Int8Conv2D _Int8Dense _Int8DepthwiseConv2d _Int8Dequantize _Int8Quantize",
    ),
    (
        "the pass fuse_attention makes it for GPUs: tests/gpu/attention.rs",
        "_Attention",
    ),
    (
        "the pass fuse_norm makes it for GPUs: tests/gpu.rs",
        "_ReluBatchNormGrad",
    ),
    (
        "tests/graphs.rs scatters graphs over devices: they are the ends of edges between the parts",
        "Recv Send _HostRecv _HostSend _Recv _Send",
    ),
    (
        "TensorFlow no longer builds or runs these forms; their successors share the kernels",
        "PlaceholderV2 RandomPoisson TensorArrayPack TensorArrayUnpack Variable",
    ),
    (
        "TensorFlow crashes: its sessions assign no devices to replicas",
        "XlaReplicaId",
    ),
    (
        "functions of Python run only in the process that made them",
        "EagerPyFunc",
    ),
    (
        "ops/tests/quantized.rs: TensorFlow crashes if it cannot overwrite the summand",
        "QuantizedConv2DWithBiasSignedSumAndReluAndRequantize QuantizedConv2DWithBiasSumAndRelu \
         QuantizedConv2DWithBiasSumAndReluAndRequantize",
    ),
    (
        "tests/table_files.rs: they read files",
        "InitializeTableFromTextFile InitializeTableFromTextFileV2",
    ),
    ("ops/tests/remap.rs: they read files", "LoadAndRemapMatrix"),
    (
        "ops/tests/datasets.rs: they write files",
        "SaveDataset SaveDatasetV2 SnapshotDataset SnapshotDatasetV2 SnapshotNestedDatasetReader",
    ),
    (
        "tests/saved_models.rs and tests/files.rs: they read and write checkpoints and files",
        "ImmutableConst MergeV2Checkpoints Restore RestoreSlice RestoreV2 SaveSlices",
    ),
];

fn golden() -> BTreeSet<String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut found = cases::ops(&tests.join("graphs"));
    found.extend(cases::ops(&tests.join("gradients")));
    found.extend(rows::ops(&tests.join("../../ops/rows")));
    found
}

#[test]
fn every_op_is_tested_against_tensorflow() {
    let golden = golden();
    let registered = registry().iter().map(|op| op.name);
    let found: BTreeSet<&str> = registered.filter(|op| !golden.contains(*op)).collect();
    let named: BTreeSet<&str> = ELSEWHERE
        .iter()
        .flat_map(|(_, ops)| ops.split_whitespace())
        .collect();
    let [missing, stale] = [&found - &named, &named - &found];
    assert!(missing.is_empty(), "no row or graph has {missing:?}");
    assert!(stale.is_empty(), "golden by now, or gone: {stale:?}");
}
