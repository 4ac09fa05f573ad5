"""Runs the stock tensorflow-serving-api client and the documented curl requests against `ferroflow serve`.

    pip install tensorflow tensorflow-serving-api
    python interop/serving.py --server target/release/ferroflow

Each answer is compared with that of TensorFlow running the model's signature.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../crates/serving/tests/models")
FAILED = []


def start(server, folder):
    """Starts the server under TensorFlow Serving's name."""
    link = os.path.join(folder, "tensorflow_model_server")
    os.symlink(os.path.abspath(server), link)
    command = [link, "--port=18598", "--rest_api_port=18599", "--model_name=half"]
    command.append(f"--model_base_path={os.path.abspath(MODELS)}/half")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = {}
    for line in process.stdout:
        if line.startswith(("GRPC", "REST")):
            name, address = line.split()
            found[name] = address.replace("0.0.0.0", "127.0.0.1")
        if len(found) == 2:
            return process, found
    sys.exit("no server")


def check(name, got, expected):
    good = got == expected
    print("ok  " if good else "FAIL", name)
    if not good:
        FAILED.append(name)
        print(f"  got      {got}\n  expected {expected}")


def rest(base, path, body=None):
    data = body.encode() if body is not None else None
    try:
        with urllib.request.urlopen(base + path, data) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def grpc_checks(address, model):
    channel = grpc.insecure_channel(address)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    x = np.array([1, 2, 5], np.float32)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(x))
    expected = model.signatures["serving_default"](x=tf.constant(x))["y"].numpy()
    answer = stub.Predict(request, timeout=10)
    check("predict", tf.make_ndarray(answer.outputs["y"]).tolist(), expected.tolist())
    check("typed fields", list(answer.outputs["y"].float_val), expected.tolist())
    check("served version", answer.model_spec.version.value, 2)
    request.model_spec.name = "nope"
    try:
        stub.Predict(request, timeout=10)
        check("unknown model", "an answer", "an error")
    except grpc.RpcError as e:
        check("unknown model", (e.code(), e.details()), (grpc.StatusCode.NOT_FOUND, "Servable not found for request: Latest(nope)"))
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(0.25)
    regression = regression_pb2.RegressionRequest()
    regression.model_spec.name = "half"
    regression.model_spec.signature_name = "regress"
    regression.input.example_list.examples.append(example)
    values = stub.Regress(regression, timeout=10).result.regressions
    check("regress", [v.value for v in values], [3.125])
    classification = classification_pb2.ClassificationRequest()
    classification.model_spec.CopyFrom(regression.model_spec)
    classification.model_spec.signature_name = "classify"
    classification.input.CopyFrom(regression.input)
    found = stub.Classify(classification, timeout=10).result.classifications
    check("classify", [(c.label, c.score) for c in found[0].classes], [("yes", 0.25), ("no", 0.75)])
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "half"
    signatures = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(metadata, timeout=10).metadata["signature_def"].Unpack(signatures)
    check("metadata", set(signatures.signature_def) >= {"serving_default", "regress", "classify"}, True)
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "half"
    states = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(status, timeout=10)
    check("status", [(v.version, v.state) for v in states.model_version_status], [(2, 30)])


def rest_checks(base):
    """The requests of TensorFlow Serving's documentation."""
    url = "/v1/models/half"
    check("REST predict", rest(base, url + ":predict", '{"instances": [1.0,2.0,5.0]}'), (200, {"predictions": [3.5, 4.0, 5.5]}))
    body = '{"signature_name": "regress", "examples": [{"x": 1.0}, {"x": 2.0}]}'
    check("REST regress", rest(base, url + ":regress", body), (200, {"results": [3.5, 4.0]}))
    error = {"error": "Servable not found for request: Latest(other)"}
    check("REST error", rest(base, "/v1/models/other:predict", '{"instances": [1.0,5.0]}'), (404, error))
    state = {"version": "2", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    check("REST status", rest(base, url), (200, {"model_version_status": [state]}))
    code, metadata = rest(base, url + "/metadata")
    inputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    expected = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}, "name": "serving_default_x:0"}
    check("REST metadata", (code, inputs["x"]), (200, expected))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="the ferroflow binary")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, addresses = start(args.server, folder)
        try:
            grpc_checks(addresses["GRPC"], tf.saved_model.load(os.path.join(MODELS, "half/2")))
            rest_checks(addresses["REST"])
        finally:
            process.terminate()
        check("drained", process.wait(), 0)
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
