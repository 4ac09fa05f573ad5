"""Writes the models and the requests of crates/serving/tests: each request with the answer that TensorFlow computes
from the model's own signature, or with the error that TensorFlow Serving's sources document.

    python oracle/serving.py          # needs tensorflow and tensorflow-serving-api
"""

import base64
import json
import pathlib
import shutil
import sys

import numpy as np
import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

OUT = pathlib.Path(__file__).parent.parent / "crates/serving/tests"
MODELS = OUT / "models"
ROWS = []


class Half(tf.Module):
    """y = x / 2 + b, with signatures of all methods."""

    def __init__(self, b):
        super().__init__()
        self.a = tf.Variable(0.5)
        self.b = tf.Variable(float(b))

    def parse(self, examples):
        spec = {"x": tf.io.FixedLenFeature([1], tf.float32)}
        return tf.io.parse_example(examples, spec)["x"]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def predict(self, x):
        return {"y": self.a * x + self.b}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress(self, inputs):
        return {"outputs": self.a * self.parse(inputs) + self.b}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def classify(self, inputs):
        x = self.parse(inputs)
        scores = tf.concat([x, 1.0 - x], 1)
        labels = tf.constant([["yes", "no"]])
        return {"classes": tf.tile(labels, [tf.shape(x)[0], 1]), "scores": scores}


class Many(tf.Module):
    """Inputs and outputs of many dtypes."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.float32, "f"),
            tf.TensorSpec([None], tf.int64, "i"),
            tf.TensorSpec([None], tf.string, "s"),
            tf.TensorSpec([None, None], tf.bool, "b"),
        ]
    )
    def all(self, f, i, s, b):
        return {
            "f": f * 2.0,
            "d": tf.cast(f, tf.float64) / 3.0,
            "i": i + 1,
            "u": tf.cast(i, tf.uint8),
            "s": tf.strings.join([s, "!"]),
            "s_bytes": tf.strings.join([s, "\x00"]),
            "b": tf.logical_not(b),
        }

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    def total(self, x):
        return {"total": tf.reduce_sum(x), "rows": x + 0.0}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "s")])
    def upper(self, s):
        return {"upper": tf.strings.upper(s)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 2], tf.int32, "x")])
    def ints(self, x):
        return {"y": x + 1}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def pick(self, x):
        return {"y": tf.gather(x, tf.constant([0, 1]), axis=1) / tf.constant([[0.0, 4.0]])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "n")])
    def checked(self, n):
        with tf.control_dependencies([tf.debugging.assert_positive(n, message="n must be positive")]):
            return {"n": n * 2}


def save():
    shutil.rmtree(MODELS, ignore_errors=True)
    loaded = {}
    for version, b in ((1, 2), (2, 3)):
        half = Half(b)
        path = MODELS / "half" / str(version)
        signatures = {
            "serving_default": half.predict,
            "regress": half.regress,
            "classify": half.classify,
        }
        tf.saved_model.save(half, str(path), signatures=signatures)
    many = Many()
    signatures = {
        "serving_default": many.all,
        "total": many.total,
        "upper": many.upper,
        "ints": many.ints,
        "pick": many.pick,
        "checked": many.checked,
    }
    tf.saved_model.save(many, str(MODELS / "many" / "7"), signatures=signatures)
    for path in sorted(MODELS.glob("*/*")):
        model = tf.saved_model.load(str(path))
        loaded[path.parent.name, int(path.name)] = model
        # Only the graph and the variables are served.
        (path / "fingerprint.pb").unlink(missing_ok=True)
        for folder in ("assets", "variables"):
            if (path / folder).is_dir() and not any((path / folder).iterdir()):
                (path / folder).rmdir()
    return loaded


MODELS_BY_NAME = {}


def run(model, version, signature, inputs):
    f = MODELS_BY_NAME[model, version].signatures[signature or "serving_default"]
    spec = f.structured_input_signature[1]
    args = {k: tf.constant(v, dtype=spec[k].dtype) for k, v in inputs.items()}
    return {k: v.numpy() for k, v in f(**args).items()}


def row(name, **fields):
    ROWS.append({"name": name, **fields})


def json_value(key, value):
    def one(v):
        if isinstance(v, bytes):
            return {"b64": base64.b64encode(v).decode()} if key.endswith("_bytes") else v.decode()
        return v

    def walk(v):
        return [walk(x) for x in v] if isinstance(v, list) else one(v)

    return walk(value.tolist())


def rest(name, path, body, expected=None, status=200, error=None, method="POST", text=None):
    body = text if text is not None else json.dumps(body)
    fields = {"method": method, "path": path, "body": body, "status": status}
    if error is not None:
        expected = {"error": error}
    row(name, rest=fields, expected=json.dumps(expected))


def rest_rows(name, model, version, signature, instances, path=None):
    """A prediction in row format."""
    keys = list(MODELS_BY_NAME[model, version].signatures[signature or "serving_default"].structured_input_signature[1])
    named = isinstance(instances[0], dict) and "b64" not in instances[0]
    plain = lambda v: base64.b64decode(v["b64"]) if isinstance(v, dict) else v
    inputs = {k: [plain(i[k]) if named else plain(i) for i in instances] for k in keys}
    outputs = run(model, version, signature, inputs)
    rows = []
    for i in range(len(instances)):
        item = {k: json_value(k, np.asarray(v[i], dtype=v.dtype)) for k, v in outputs.items()}
        rows.append(item if len(item) > 1 else next(iter(item.values())))
    body = {"instances": instances} | ({"signature_name": signature} if signature else {})
    rest(name, path or f"/v1/models/{model}:predict", body, {"predictions": rows})


def rest_columns(name, model, version, signature, inputs, path=None):
    """A prediction in columnar format."""
    keys = list(MODELS_BY_NAME[model, version].signatures[signature or "serving_default"].structured_input_signature[1])
    named = inputs if isinstance(inputs, dict) else {keys[0]: inputs}
    outputs = run(model, version, signature, named)
    items = {k: json_value(k, v) for k, v in outputs.items()}
    body = {"inputs": inputs} | ({"signature_name": signature} if signature else {})
    expected = items if len(items) > 1 else next(iter(items.values()))
    rest(name, path or f"/v1/models/{model}:predict", body, {"outputs": expected})


def encoded(message):
    return base64.b64encode(message.SerializeToString()).decode()


def rpc(name, method, request, response=None, code=0, message=""):
    service = "ModelService" if method == "GetModelStatus" else "PredictionService"
    fields = {"method": f"/tensorflow.serving.{service}/{method}", "request": encoded(request), "code": code}
    row(name, rpc=fields, expected=encoded(response) if response is not None else message)


def spec(to, model, version=None, label=None, signature=None):
    to.name = model
    if version is not None:
        to.version.value = version
    if label is not None:
        to.version_label = label
    if signature is not None:
        to.signature_name = signature


def predict(name, model, inputs, version=None, label=None, signature=None, served=None, code=0, message="", only=()):
    request = predict_pb2.PredictRequest()
    spec(request.model_spec, model, version, label, signature)
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(value if isinstance(value, tensor_pb2.TensorProto) else tf.make_tensor_proto(value))
    request.output_filter.extend(only)
    if code:
        return rpc(name, "Predict", request, code=code, message=message)
    response = predict_pb2.PredictResponse()
    spec(response.model_spec, model, served, signature=signature or "serving_default")
    arrays = {k: tf.make_ndarray(p) for k, p in request.inputs.items()}
    for key, value in run(model, served, signature, arrays).items():
        if not only or key in only:
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
    rpc(name, "Predict", request, response)


def examples(values):
    made = []
    for value in values:
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        made.append(tf.train.Example(features=tf.train.Features(feature={"x": feature})))
    return made


INVALID, NOT_FOUND, PRECONDITION, UNIMPLEMENTED = 3, 5, 9, 12


def write_rest():
    half = "/v1/models/half:predict"
    rest_rows("rows", "half", 2, None, [1.0, 2.0, 5.0])
    rest_rows("rows of one version", "half", 1, None, [1.0], "/v1/models/half/versions/1:predict")
    rest_rows("rows of a label", "half", 1, None, [7], "/v1/models/half/labels/stable:predict")
    rest_rows("paths in any case", "half", 2, None, [1], "/V1/MODELS/half/VERSIONS/2:Predict")
    rest_columns("columns", "half", 2, None, [1.0, 2.0])
    rest_columns("columns by name", "half", 2, None, {"x": [3.0]})
    rest_rows("numbers that are not finite", "half", 2, None, [float("nan"), float("inf"), float("-inf"), 1e-20, 3e38])
    rest_rows("digits", "half", 2, None, [0.1, 1 / 3, 123456.7, 1e10, 16777216.0, -0.0])
    many = {"f": [1.5, -2.0], "i": 9, "s": "a\u00e9\"\n", "b": [True, False]}
    rest_rows("named rows", "many", 7, None, [many, many | {"i": 250}])
    rest_columns("named columns", "many", 7, None, {"f": [[1, 2]], "i": [3], "s": ["x"], "b": [[True]]})
    rest_rows("binary strings", "many", 7, "upper", [{"b64": base64.b64encode(b"ab").decode()}, "c"])
    rest_rows("nested lists", "many", 7, "ints", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    rest_columns("nested columns", "many", 7, "ints", [[[1, 2], [3, 2147483646]]])
    rest_columns("a scalar output in columns", "many", 7, "total", [[1.0, 2.0], [3.0, 4.0]])
    rest_rows("division by zero", "many", 7, "pick", [[1.0, 2.0, 3.0]])
    rest("text behind the object is ignored", half, None, {"predictions": [3.5]}, text='{"instances": [1]} x')
    values = {"predictions": [4.0]}
    rest("spaces and escapes", half, None, values, text='{ "\\u0069nstances" :\t[ 2\n] }')
    path = "/v1/models/half:regress"
    body = {"signature_name": "regress", "examples": [{"x": 1.0}, {"x": 2.0}]}
    rest("regress", path, body, {"results": [3.5, 4.0]})
    body = {"signature_name": "regress", "examples": [{}, {}], "context": {"x": [6.5]}}
    rest("regress with a context", path, body, {"results": [6.25, 6.25]})
    path = "/v1/models/half:classify"
    body = {"signature_name": "classify", "examples": [{"x": [0.25]}, {"x": 0.5}]}
    expected = [[["yes", 0.25], ["no", 0.75]], [["yes", 0.5], ["no", 0.5]]]
    rest("classify", path, body, {"results": expected})

    ok = {"error_code": "OK", "error_message": ""}
    one = lambda v: {"version": str(v), "state": "AVAILABLE", "status": ok}
    get = lambda *a, **k: rest(*a, method="GET", **k)
    get("status", "/v1/models/half", None, {"model_version_status": [one(2), one(1)]})
    get("status of a version", "/v1/models/half/versions/1", None, {"model_version_status": [one(1)]})
    get("status of a label", "/v1/models/half/labels/stable", None, {"model_version_status": [one(1)]})
    get("status of an unknown model", "/v1/models/nope", None, status=404, error="Could not find any versions of model nope")
    get("status of an unknown version", "/v1/models/half/versions/9", None, status=404, error="Could not find version 9 of model half")
    get("status without a name", "/v1/models", None, status=400, error="Missing model name in request.")
    get("another path", "/v1/other", None, status=400, error="Malformed request: GET /v1/other")
    get("a prediction is posted", half, None, status=400, error=f"Malformed request: GET {half}")
    get("metadata of an unknown model", "/v1/models/nope/metadata", None, status=404, error="Servable not found for request: Latest(nope)")

    bad = lambda name, body=None, error=None, path=half, status=400, text=None: rest(
        name, path, body, status=status, error=error, text=text)
    bad("an unknown method", {}, "Malformed request: POST /v1/models/half:explain", "/v1/models/half:explain")
    bad("an unknown model", {"instances": [1]}, "Servable not found for request: Latest(nope)", "/v1/models/nope:predict", 404)
    bad("an unknown version", {"instances": [1]}, "Servable not found for request: Specific(half, 9)", "/v1/models/half/versions/9:predict", 404)
    bad("an unknown label", {"instances": [1]}, "Unrecognized servable version label: best", "/v1/models/half/labels/best:predict")
    bad("an unknown signature", {"signature_name": "no", "instances": [1]}, 'Serving signature name: "no" not found in signature def')
    bad("no body", text="", error="JSON Parse error: The document is empty")
    bad("broken JSON", text='{"instances": [1,', error="JSON Parse error: Invalid value. at offset: 17")
    bad("a list", [1], "JSON Value: [1] Is not object")
    bad("no instances", {"examples": [1]}, "Missing 'inputs' or 'instances' key")
    both = '{\n    "inputs": [1],\n    "instances": [1]\n}'
    bad("two arrangements", {"inputs": [1], "instances": [1]}, f"JSON Value: {both} Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ")
    bad("no list", {"instances": 3}, "JSON Value: {\n    \"instances\": 3\n} Expecting 'instances' to be an list/array")
    bad("no values", {"instances": []}, "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array")
    bad("a signature that is no string", {"signature_name": 3, "instances": [1]}, "JSON Value: {\n    \"signature_name\": 3,\n    \"instances\": [1]\n} not formatted correctly. 'signature_name' key must be a string value.")
    element = "Failed to process element: {} of 'instances' list. Error: INVALID_ARGUMENT: "
    bad("a wrong dtype", {"instances": ["a"]}, element.format(0) + 'JSON Value: "a" Type: String is not of expected type: float')
    bad("a list among values", {"instances": [1, [2]]}, element.format(1) + "Expecting tensor size: 1 but got: 1".replace("Expecting tensor size: 1 but got: 1", "Expecting shape [] but got: [1]"))
    bad("a fraction for an integer", {"signature_name": "ints", "instances": [[[1, 2.5], [3, 4]]]}, element.format(0) + "JSON Value: 2.5 Type: Number is not of expected type: int32", "/v1/models/many:predict")
    bad("a large integer", {"signature_name": "ints", "instances": [[[1, 2147483648], [3, 4]]]}, element.format(0) + "JSON Value: 2147483648 Type: Number is not of expected type: int32", "/v1/models/many:predict")
    bad("ragged lists", {"signature_name": "ints", "instances": [[[1, 2], [3]]]}, element.format(0) + "Encountered list at unexpected size: 1 at level: 1 expected size: 2", "/v1/models/many:predict")
    bad("a value among lists", {"signature_name": "ints", "instances": [[[1, 2], 3]]}, element.format(0) + "JSON Value: 3 found at incorrect level: 2 in the JSON DOM. Expected at level: 2", "/v1/models/many:predict")
    bad("lists that are too deep", {"inputs": [1, [2]]}, "Encountered list at unexpected level: 1 expected < 1")
    bad("other shapes", {"signature_name": "ints", "instances": [[[1, 2], [3, 4]], [[1, 2, 3, 4]]]}, element.format(1) + "Expecting shape [2,2] but got: [1,4]", "/v1/models/many:predict")
    bad("wrong base64", {"signature_name": "upper", "instances": [{"b64": "*"}]}, element.format(0) + "Unable to base64 decode", "/v1/models/many:predict")
    bad("no objects", {"instances": [1]}, "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map", "/v1/models/many:predict")
    bad("a missing column", {"inputs": {"f": [[1, 2]]}}, "Missing named input: b in 'inputs' object.", "/v1/models/many:predict")
    bad("an unknown input", {"instances": [{"q": 1}]}, "Failed to process element: 0 key: q of 'instances' list. Error: INVALID_ARGUMENT: JSON object: does not have named input: q")
    keys = '{\n    "f": [1, 2]\n}'
    bad("a missing input", {"instances": [{"f": [1, 2]}]}, f"Failed to process element: 0 of 'instances' list. JSON object: {keys} keys must be equal to: b,f,i,s", "/v1/models/many:predict")
    bad("an object among values", {"instances": [1, {"x": 1}]}, "Expecting value/list but got object at item 1 of input list")
    bad("outputs with other rows", {"signature_name": "total", "instances": [[1, 2]]}, "Tensor name: total has no shape information ", "/v1/models/many:predict")
    bad("a regression of predictions", {"examples": [{"x": 1.0}]}, "No regression inputs found in SignatureDef: inputs {x} outputs {y} method_name: \"tensorflow/serving/predict\"", "/v1/models/half:regress")
    bad("no examples", {"signature_name": "regress"}, "JSON Value: {\n    \"signature_name\": \"regress\"\n} When method is classify, key 'examples' is expected and was not found", "/v1/models/half:regress")
    bad("examples of mixed kinds", {"examples": [{"x": [1.5, "a"]}]}, "Unexpected element type in feature: x expecting type: float", "/v1/models/half:classify")
    bad("an example that is no object", {"examples": [3]}, "Example must be JSON object but got JSON Number", "/v1/models/half:classify")
    bad("an example with null", {"examples": [{"x": None}]}, "Feature: x has element with unexpected JSON type: Null", "/v1/models/half:classify")


def write_rpc():
    f = lambda *v: np.array(v, np.float32)
    predict("grpc: predict", "half", {"x": f(1, 2, 5)}, served=2)
    predict("grpc: predict with a version", "half", {"x": f(1)}, version=1, served=1)
    predict("grpc: predict with a label", "half", {"x": f(4)}, label="stable", served=1)
    predict("grpc: no rows", "half", {"x": np.zeros([0], np.float32)}, served=2)
    typed = tensor_pb2.TensorProto(dtype=1, float_val=[3.0], tensor_shape=tf.TensorShape([4]).as_proto())
    predict("grpc: a value that is repeated", "half", {"x": typed}, served=2)
    many = {"f": np.array([[1, 2], [3, 4]], np.float32), "i": np.array([5, 6]), "s": np.array([b"a", b"\xff"]), "b": np.array([[True], [False]])}
    predict("grpc: many dtypes", "many", many, served=7)
    predict("grpc: some outputs", "many", many, served=7, only=["i", "f"])
    predict("grpc: a signature", "many", {"x": np.ones([2, 2], np.float32)}, signature="total", served=7)
    predict("grpc: an unknown model", "nope", {"x": f(1)}, code=NOT_FOUND, message="Servable not found for request: Latest(nope)")
    predict("grpc: an unknown version", "half", {"x": f(1)}, version=9, code=NOT_FOUND, message="Servable not found for request: Specific(half, 9)")
    predict("grpc: an unknown label", "half", {"x": f(1)}, label="best", code=INVALID, message="Unrecognized servable version label: best")
    predict("grpc: no name", "", {"x": f(1)}, code=INVALID, message="ModelSpec has no name specified.")
    predict("grpc: an unknown signature", "half", {"x": f(1)}, signature="no", code=PRECONDITION, message='Serving signature key "no" not found.')
    predict("grpc: no input", "half", {}, code=INVALID, message="input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}.")
    predict("grpc: an additional input", "half", {"x": f(1), "z": f(1)}, code=INVALID, message="input size does not match signature: 2!=1 len({x,z}) != len({x}). Sent extra: {z}. Missing but required: {}.")
    predict("grpc: another input", "half", {"z": f(1)}, code=INVALID, message="Signature input alias: x(feed name: serving_default_x:0) not found in request and no default value provided. Inputs expected to be in the request {z}, or default input alias set: ")
    predict("grpc: an unknown output", "half", {"x": f(1)}, only=["q"], code=INVALID, message="output tensor alias not found in signature: q Outputs expected to be in the set {y}.")
    predict("grpc: an output twice", "half", {"x": f(1)}, only=["y", "y"], code=INVALID, message="duplicate output tensor alias: y")
    predict("grpc: a wrong dtype", "half", {"x": np.array([1], np.int32)}, code=INVALID, message="Expects arg[0] to be float but int32 is provided")
    damaged = tensor_pb2.TensorProto(dtype=1, tensor_content=b"abc", tensor_shape=tf.TensorShape([1]).as_proto())
    predict("grpc: a damaged tensor", "half", {"x": damaged}, code=INVALID, message="tensor parsing error: x")
    rpc("grpc: no model", "Predict", predict_pb2.PredictRequest(), code=INVALID, message="Missing ModelSpec")

    def input_of(request, values):
        request.input.example_list.examples.extend(examples(values))

    request, response = regression_pb2.RegressionRequest(), regression_pb2.RegressionResponse()
    spec(request.model_spec, "half", signature="regress")
    input_of(request, [1.0, 4.0])
    spec(response.model_spec, "half", 2, signature="regress")
    for value in run("half", 2, "regress", {"inputs": [e.SerializeToString() for e in examples([1.0, 4.0])]})["outputs"].ravel():
        response.result.regressions.add(value=value)
    rpc("grpc: regress", "Regress", request, response)
    empty = regression_pb2.RegressionRequest()
    spec(empty.model_spec, "half", signature="regress")
    rpc("grpc: regress nothing", "Regress", empty, code=INVALID, message="Input is empty.")
    empty.model_spec.signature_name = "no"
    rpc("grpc: regress with an unknown signature", "Regress", empty, code=INVALID, message="No signature was found with the name: no")

    request, response = classification_pb2.ClassificationRequest(), classification_pb2.ClassificationResponse()
    spec(request.model_spec, "half", 1, signature="classify")
    input_of(request, [0.25, 0.75])
    spec(response.model_spec, "half", 1, signature="classify")
    answer = run("half", 1, "classify", {"inputs": [e.SerializeToString() for e in examples([0.25, 0.75])]})
    for labels, scores in zip(answer["classes"], answer["scores"]):
        made = response.result.classifications.add()
        for label, score in zip(labels, scores):
            made.classes.add(label=label.decode(), score=score)
    rpc("grpc: classify", "Classify", request, response)
    request.model_spec.signature_name = "regress"
    rpc("grpc: classify with a regression", "Classify", request, code=INVALID, message='Expected classification signature outputs to contain at least one of "classes" or "scores". Signature was: inputs {inputs} outputs {outputs} method_name: "tensorflow/serving/predict"')

    request, both = inference_pb2.MultiInferenceRequest(), inference_pb2.MultiInferenceResponse()
    for name in ("classify", "regress"):
        task = request.tasks.add(method_name=f"tensorflow/serving/{name}")
        spec(task.model_spec, "half", signature=name)
        spec(both.results.add().model_spec, "half", 2, signature=name)
    input_of(request, [0.25, 0.75])
    both.results[0].classification_result.CopyFrom(response.result)
    values = run("half", 2, "regress", {"inputs": [e.SerializeToString() for e in examples([0.25, 0.75])]})["outputs"]
    for value in values.ravel():
        both.results[1].regression_result.regressions.add(value=value)
    rpc("grpc: multi-inference", "MultiInference", request, both)
    twice = inference_pb2.MultiInferenceRequest()
    twice.CopyFrom(request)
    twice.tasks.append(request.tasks[0])
    rpc("grpc: a signature twice", "MultiInference", twice, code=INVALID, message="Duplicate evaluation of signature: classify")
    other = inference_pb2.MultiInferenceRequest()
    other.CopyFrom(request)
    other.tasks[1].model_spec.name = "many"
    rpc("grpc: two models", "MultiInference", other, code=INVALID, message="All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    other = inference_pb2.MultiInferenceRequest()
    other.CopyFrom(request)
    other.tasks[0].method_name = "explain"
    rpc("grpc: an unknown inference", "MultiInference", other, code=UNIMPLEMENTED, message="Unsupported signature method_name: explain")

    request, response = get_model_status_pb2.GetModelStatusRequest(), get_model_status_pb2.GetModelStatusResponse()
    spec(request.model_spec, "half")
    for version in (2, 1):
        made = response.model_version_status.add(version=version, state=30)
        made.status.SetInParent()
    rpc("grpc: status", "GetModelStatus", request, response)
    spec(request.model_spec, "nope")
    rpc("grpc: status of an unknown model", "GetModelStatus", request, code=NOT_FOUND, message="Could not find any versions of model nope")
    request = get_model_metadata_pb2.GetModelMetadataRequest()
    spec(request.model_spec, "half")
    rpc("grpc: no metadata", "GetModelMetadata", request, code=INVALID, message="GetModelMetadataRequest must specify at least one metadata_field")
    request.metadata_field.append("other")
    rpc("grpc: unknown metadata", "GetModelMetadata", request, code=INVALID, message="Metadata field other is not supported")
    request.metadata_field[:] = ["signature_def"]
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    spec(response.model_spec, "half", 2)
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((MODELS / "half/2/saved_model.pb").read_bytes())
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in saved.meta_graphs[0].signature_def.items():
        signatures.signature_def[name].CopyFrom(signature)
    packed = any_pb2.Any()
    packed.Pack(signatures)
    response.metadata["signature_def"].CopyFrom(packed)
    rpc("grpc: metadata", "GetModelMetadata", request, response)


def main():
    MODELS_BY_NAME.update(save())
    write_rest()
    write_rpc()
    lines = [json.dumps(r) for r in ROWS]
    (OUT / "requests.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(ROWS)} requests", file=sys.stderr)


if __name__ == "__main__":
    main()
