//! What TensorFlow does in corners of its C API.

use super::*;
use ferroflow_model::proto;
use prost::Message;
use std::sync::Mutex;

#[test]
fn descriptions_are_checked() {
    type SetAttrs = fn(*mut TF_OperationDescription);
    let twice: SetAttrs = |d| {
        // SAFETY: the description lives.
        unsafe {
            TF_SetAttrInt(d, c"_v".as_ptr(), 5);
            TF_SetAttrInt(d, c"_v".as_ptr(), 5);
            TF_SetAttrInt(d, c"_v".as_ptr(), 9);
        }
    };
    let rows: [(&str, SetAttrs, c_int, &str); 2] = [
        (
            "NoOp",
            twice,
            3,
            "Inconsistent values for attr '_v' 5 vs. 9",
        ),
        (
            "TextLineReader",
            |_| (),
            12,
            "Op TextLineReader is not available in GraphDef version",
        ),
    ];
    let client = Client::new();
    for (op, attrs, code, text) in rows {
        client.add(op, "n", &[], attrs);
        let (found, message) = client.outcome();
        assert_eq!(found, code, "{message}");
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn lists_of_other_kinds_are_read_as_in_tensorflow() {
    let client = Client::new();
    let ints = [1i64, 2];
    let node = client.add("NoOp", "n", &[], |d| {
        // SAFETY: the description lives.
        unsafe {
            TF_SetAttrIntList(d, c"_ints".as_ptr(), ints.as_ptr(), 2);
            TF_SetAttrInt(d, c"_int".as_ptr(), 1);
        }
    });
    client.expect_ok("node");
    let mut floats = [9f32; 2];
    let mut tensors = [null_mut(); 2];
    // SAFETY: all handles live.
    unsafe {
        TF_OperationGetAttrFloatList(
            node,
            c"_ints".as_ptr(),
            floats.as_mut_ptr(),
            2,
            client.status,
        );
        client.expect_ok("another list is an empty one");
        assert_eq!(floats, [9.0; 2]);
        let mut check = |attr: &CStr, code, text: &str| {
            let (to, status) = (tensors.as_mut_ptr(), client.status);
            TF_OperationGetAttrTensorList(node, attr.as_ptr(), to, 2, status);
            assert_eq!(client.outcome(), (code, text.to_string()));
        };
        let wrong = |kind: &str| {
            format!("AttrValue had value with type '{kind}' when 'list(tensor)' expected")
        };
        check(c"_ints", 3, &wrong("list(int)"));
        check(c"_int", 3, &wrong("int"));
        check(c"T", 5, "No attr named 'T' in NodeDef:\n\t [[{{node n}}]]");
    }
}

#[test]
fn constants_follow_from_shapes() {
    let client = Client::new();
    let dims = [2i64, 3];
    // SAFETY: the description lives.
    let x = client.add("Placeholder", "x", &[], |d| unsafe {
        TF_SetAttrType(d, c"dtype".as_ptr(), 1);
        TF_SetAttrShape(d, c"shape".as_ptr(), dims.as_ptr(), 2);
    });
    let output = |oper| TF_Output { oper, index: 0 };
    let unknown = client.placeholder("unknown");
    let size = output(client.add("Size", "size", &[output(x)], |_| ()));
    // SAFETY: as above.
    let after = client.add("AddV2", "sum", &[size, size], |d| unsafe {
        TF_AddControlInput(d, unknown.oper);
    });
    let of_unknown = client.add("Size", "of_unknown", &[unknown], |_| ());
    client.expect_ok("nodes");
    let rows = [
        (size, Some(6)),
        (output(after), Some(12)),
        (output(of_unknown), None),
    ];
    for (output, expect) in rows {
        let mut result = null_mut();
        // SAFETY: all handles live.
        unsafe {
            let known = TF_TryEvaluateConstant(client.graph, output, &mut result, client.status);
            client.expect_ok("evaluated");
            assert_eq!(known != 0, expect.is_some());
            let value = result
                .as_ref()
                .map(|_| *TF_TensorData(result).cast::<i32>());
            assert_eq!(value, expect);
            TF_DeleteTensor(result);
        }
    }
}

#[test]
fn versions_of_imports_are_kept() {
    let client = Client::new();
    let def = proto::GraphDef {
        versions: Some(proto::VersionDef {
            producer: 100,
            min_consumer: 7,
            bad_consumers: vec![9, 8],
        }),
        ..Default::default()
    };
    let bytes = def.encode_to_vec();
    // SAFETY: all handles live.
    unsafe {
        let buffer = TF_NewBufferFromString(bytes.as_ptr().cast(), bytes.len());
        let options = TF_NewImportGraphDefOptions();
        TF_GraphImportGraphDef(client.graph, buffer, options, client.status);
        client.expect_ok("import");
        TF_ImportGraphDefOptionsSetPrefix(options, c"_bad".as_ptr());
        TF_GraphImportGraphDef(client.graph, buffer, options, client.status);
        let text = "Imported node name prefix '_bad/' would lead to invalid node names";
        assert_eq!(client.outcome(), (3, text.to_string()));
        TF_DeleteImportGraphDefOptions(options);
        TF_DeleteBuffer(buffer);
        let versions = TF_NewBuffer();
        TF_GraphVersions(client.graph, versions, client.status);
        client.expect_ok("versions");
        let TF_Buffer { data, length, .. } = *versions;
        let found = proto::VersionDef::decode(crate::guard::list(data.cast::<u8>(), length));
        let found = found.expect("a VersionDef");
        assert_eq!((found.producer, found.min_consumer), (100, 7));
        assert_eq!(found.bad_consumers, [8, 9]);
        TF_DeleteBuffer(versions);
    }
}

#[test]
fn documentation_is_complete_once_it_is_read() {
    let client = Client::new();
    // SAFETY: all handles live.
    unsafe {
        let ops = TF_GetAllOpList();
        let map = TF_NewApiDefMap(ops, client.status);
        TF_DeleteBuffer(ops);
        let text = "op { graph_op_name: 'Neg' summary: 'negates' }";
        let put = || TF_ApiDefMapPut(map, text.as_ptr().cast(), text.len(), client.status);
        put();
        client.expect_ok("put");
        let found = TF_ApiDefMapGet(map, c"Neg".as_ptr(), 3, client.status);
        let TF_Buffer { data, length, .. } = *found;
        let def = proto::ApiDef::decode(crate::guard::list(data.cast::<u8>(), length));
        let def = def.expect("an ApiDef");
        let visible = proto::api_def::Visibility::Visible as i32;
        assert_eq!((&*def.summary, def.visibility), ("negates", visible));
        TF_DeleteBuffer(found);
        put();
        let text = "TF_ApiDefMapPut cannot be called after TF_ApiDefMapGet has been called.";
        assert_eq!(client.outcome(), (9, text.to_string()));
        TF_DeleteApiDefMap(map);
    }
}

#[test]
fn listeners_get_what_is_printed() {
    static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    unsafe extern "C" fn listen(text: *const c_char) {
        // SAFETY: the library's argument.
        let text = unsafe { CStr::from_ptr(text) };
        let mut heard = HEARD.lock().expect("no listener panics");
        heard.push(text.to_string_lossy().into_owned());
    }
    let client = Client::new();
    // SAFETY: all handles live.
    unsafe {
        TF_RegisterLogListener(Some(listen));
        let x = client.add("Placeholder", "x", &[], |d| {
            TF_SetAttrType(d, c"dtype".as_ptr(), 1);
        });
        let as_string = client.add("AsString", "s", &[TF_Output { oper: x, index: 0 }], |_| ());
        let print = client.add(
            "PrintV2",
            "p",
            &[TF_Output {
                oper: as_string,
                index: 0,
            }],
            |d| {
                TF_SetAttrString(
                    d,
                    c"output_stream".as_ptr(),
                    c"log(info)".as_ptr().cast(),
                    9,
                );
            },
        );
        client.expect_ok("nodes");
        let session = client.session();
        let (feed, input) = (scalar(2.5), TF_Output { oper: x, index: 0 });
        TF_SessionRun(
            session,
            null(),
            &input,
            &feed.cast_const(),
            1,
            null(),
            null_mut(),
            0,
            &print.cast_const(),
            1,
            null_mut(),
            client.status,
        );
        client.expect_ok("run");
        TF_DeleteTensor(feed);
        TF_DeleteSession(session, client.status);
    }
    assert_eq!(*HEARD.lock().expect("no listener panics"), ["2.500000\n"]);
}

#[test]
fn local_files_have_uris() {
    let client = Client::new();
    let folder = std::env::temp_dir().join(format!("ferroflow-uri-{}", std::process::id()));
    let uri = CString::new(format!("file://{}/a", folder.display())).expect("text");
    std::fs::create_dir_all(&folder).expect("writable");
    // SAFETY: all handles live.
    unsafe {
        TF_CreateDir(uri.as_ptr(), client.status);
        client.expect_ok("created");
        assert!(folder.join("a").is_dir());
        TF_DeleteDir(uri.as_ptr(), client.status);
        client.expect_ok("deleted");
    }
    assert!(!folder.join("a").exists());
    std::fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn a_metric_may_be_made_twice() {
    let client = Client::new();
    // SAFETY: all handles live.
    unsafe {
        let make = || {
            let (name, text) = (c"/tests/twice".as_ptr(), c"text".as_ptr());
            TFE_MonitoringNewCounter0(name, client.status, text)
        };
        let both = [make(), make()];
        client.expect_ok("second metric");
        for counter in both {
            assert!(!counter.is_null());
            TFE_MonitoringDeleteCounter0(counter);
        }
    }
}
