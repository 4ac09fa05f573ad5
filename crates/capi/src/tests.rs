//! The functions as a C program calls them.

use crate::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

mod details;
mod gradients;
mod graphs;
mod sessions;

/// A graph with its status; deleted at the end.
struct Client {
    graph: *mut TF_Graph,
    status: *mut TF_Status,
}

impl Client {
    fn new() -> Client {
        Client {
            graph: TF_NewGraph(),
            status: TF_NewStatus(),
        }
    }

    /// Code and message of the last call.
    fn outcome(&self) -> (c_int, String) {
        // SAFETY: the status lives.
        unsafe {
            let message = CStr::from_ptr(TF_Message(self.status));
            (
                TF_GetCode(self.status),
                message.to_string_lossy().into_owned(),
            )
        }
    }

    fn expect_ok(&self, what: &str) {
        assert_eq!(self.outcome(), (0, String::new()), "{what}");
    }

    /// Adds a node with inputs, after `attrs` has set its attrs.
    fn add(
        &self,
        op: &str,
        name: &str,
        inputs: &[TF_Output],
        attrs: impl FnOnce(*mut TF_OperationDescription),
    ) -> *mut TF_Operation {
        let (op, name) = (
            CString::new(op).expect("text"),
            CString::new(name).expect("text"),
        );
        // SAFETY: all handles live.
        unsafe {
            let description = TF_NewOperation(self.graph, op.as_ptr(), name.as_ptr());
            inputs
                .iter()
                .for_each(|input| TF_AddInput(description, *input));
            attrs(description);
            TF_FinishOperation(description, self.status)
        }
    }

    fn placeholder(&self, name: &str) -> TF_Output {
        // SAFETY: the description lives.
        let oper = self.add("Placeholder", name, &[], |d| unsafe {
            TF_SetAttrType(d, c"dtype".as_ptr(), 1);
        });
        TF_Output { oper, index: 0 }
    }

    fn session(&self) -> *mut TF_Session {
        // SAFETY: all handles live.
        unsafe {
            let options = TF_NewSessionOptions();
            let session = TF_NewSession(self.graph, options, self.status);
            TF_DeleteSessionOptions(options);
            session
        }
    }

    /// Feeds one number, fetches one.
    fn run(&self, session: *mut TF_Session, x: TF_Output, value: f32, y: TF_Output) -> Option<f32> {
        let feed = scalar(value);
        let mut result = null_mut();
        // SAFETY: all handles live.
        unsafe {
            TF_SessionRun(
                session,
                null(),
                &x,
                &feed.cast_const(),
                1,
                &y,
                &mut result,
                1,
                null(),
                0,
                null_mut(),
                self.status,
            );
            let found = result
                .as_ref()
                .map(|_| *TF_TensorData(result).cast::<f32>());
            TF_DeleteTensor(feed);
            TF_DeleteTensor(result);
            found
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: both were made by `new`.
        unsafe {
            TF_DeleteGraph(self.graph);
            TF_DeleteStatus(self.status);
        }
    }
}

fn scalar(value: f32) -> *mut TF_Tensor {
    // SAFETY: the new tensor has four bytes.
    unsafe {
        let tensor = TF_AllocateTensor(1, null(), 0, 4);
        TF_TensorData(tensor).cast::<f32>().write(value);
        tensor
    }
}

#[test]
fn a_graph_grows_between_runs() {
    let client = Client::new();
    let x = client.placeholder("x");
    client.expect_ok("placeholder");
    let session = client.session();
    client.expect_ok("session");
    let y = TF_Output {
        oper: client.add("Neg", "y", &[x], |_| ()),
        index: 0,
    };
    assert_eq!(client.run(session, x, 3.0, y), Some(-3.0));
    let z = TF_Output {
        oper: client.add("Square", "z", &[y], |_| ()),
        index: 0,
    };
    assert_eq!(client.run(session, x, 3.0, z), Some(9.0));
    assert_eq!(client.run(session, x, 2.0, y), Some(-2.0));
    // A node that has run is changed: the session refuses further runs.
    // SAFETY: all handles live.
    unsafe {
        let input = TF_Input {
            oper: z.oper,
            index: 0,
        };
        TF_UpdateEdge(client.graph, x, input, client.status);
    }
    client.expect_ok("update");
    assert_eq!(client.run(session, x, 3.0, z), None);
    let (code, message) = client.outcome();
    assert_eq!(code, 9);
    assert!(
        message.starts_with("Operation 'z' was changed by updating input tensor"),
        "{message}"
    );
    // SAFETY: the session lives.
    unsafe { TF_DeleteSession(session, client.status) };
}

#[test]
fn a_session_outlives_its_graph_handle() {
    let client = Client::new();
    let x = client.placeholder("x");
    let y = TF_Output {
        oper: client.add("Neg", "y", &[x], |_| ()),
        index: 0,
    };
    let session = client.session();
    assert_eq!(client.run(session, x, 1.0, y), Some(-1.0));
    // SAFETY: the graph lives; what is behind it is kept by the session.
    unsafe {
        TF_DeleteGraph(client.graph);
        let mut client = client;
        client.graph = null_mut();
        assert_eq!(client.run(session, x, 2.0, y), Some(-2.0));
        TF_DeleteSession(session, client.status);
    }
}

/// A call that must fail: code, and the beginning of the message.
fn check_error(call: impl FnOnce(&Client), code: c_int, message: &str) {
    let client = Client::new();
    call(&client);
    let (got, text) = client.outcome();
    assert_eq!(got, code, "{text}");
    assert!(text.starts_with(message), "{text}");
}

#[test]
fn errors() {
    check_error(
        |c| {
            c.add("Nope", "n", &[], |_| ());
        },
        3,
        "Op type not registered 'Nope' in binary running on",
    );
    check_error(
        |c| {
            c.placeholder("x");
            c.placeholder("x");
        },
        3,
        "Duplicate node name in graph: 'x'",
    );
    check_error(
        |c| {
            c.add("Neg", "n", &[NO_INPUT], |_| ());
        },
        3,
        "Attempt to add nullptr Node to node with type Neg",
    );
    check_error(
        |c| {
            let x = c.placeholder("x");
            c.add("Neg", "n", &[TF_Output { index: -1, ..x }], |_| ());
        },
        3,
        "Attempt to add output -1 of x not in range [0, 1) to node with type Neg. Node: {{node x}}",
    );
    check_error(
        // SAFETY: the session was just created.
        |c| unsafe {
            let x = c.placeholder("x");
            let session = c.session();
            c.run(session, x, 2.0, x);
            let status = TF_NewStatus();
            TF_DeleteSession(session, status);
            TF_DeleteStatus(status);
        },
        3,
        "x:0 is both fed and fetched.",
    );
    check_error(
        // SAFETY: NULL is tolerated.
        |c| unsafe {
            TF_SessionRun(
                null_mut(),
                null(),
                null(),
                null(),
                0,
                null(),
                null_mut(),
                0,
                null(),
                0,
                null_mut(),
                c.status,
            );
        },
        3,
        "TF_Session argument is NULL",
    );
    check_error(
        // SAFETY: the buffer has no proto.
        |c| unsafe {
            let options = TF_NewImportGraphDefOptions();
            let garbage = TF_NewBufferFromString(c"\x07".as_ptr().cast(), 1);
            TF_GraphImportGraphDef(c.graph, garbage, options, c.status);
            TF_DeleteBuffer(garbage);
            TF_DeleteImportGraphDefOptions(options);
        },
        3,
        "Invalid GraphDef",
    );
    check_error(
        // SAFETY: the buffer is not empty.
        |c| unsafe {
            let full = TF_NewBufferFromString(c"x".as_ptr().cast(), 1);
            TF_GraphToGraphDef(c.graph, full, c.status);
            TF_DeleteBuffer(full);
        },
        3,
        "Passing non-empty TF_Buffer is invalid.",
    );
    check_error(
        // SAFETY: the name is a C string.
        |c| unsafe {
            let x = c.placeholder("x");
            let mut value = 0i64;
            TF_OperationGetAttrInt(x.oper, c"missing".as_ptr(), &mut value, c.status);
        },
        5,
        "No attr named 'missing' in NodeDef:",
    );
}

const NO_INPUT: TF_Output = TF_Output {
    oper: null_mut(),
    index: 0,
};

#[test]
fn deleting_null_is_allowed() {
    // SAFETY: NULL is what is tested.
    unsafe {
        TF_DeleteStatus(null_mut());
        TF_DeleteBuffer(null_mut());
        TF_DeleteTensor(null_mut());
        TF_DeleteGraph(null_mut());
        TF_DeleteSessionOptions(null_mut());
        TF_DeleteSession(null_mut(), null_mut());
        TF_DeleteDeprecatedSession(null_mut(), null_mut());
        TF_DeleteImportGraphDefOptions(null_mut());
        TF_DeleteImportGraphDefResults(null_mut());
        TF_DeleteFunction(null_mut());
        TF_DeletePRunHandle(null());
        TF_DeleteDeviceList(null_mut());
        TF_DeleteLibraryHandle(null_mut());
        TF_DeleteApiDefMap(null_mut());
        TF_DeleteServer(null_mut());
    }
}

#[test]
fn the_client_frees_its_memory_once() {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn free(_: *mut c_void, len: usize, _: *mut c_void) {
        FREED.fetch_add(len, Ordering::Relaxed);
    }
    let freed = || FREED.load(Ordering::Relaxed);
    #[repr(align(64))]
    struct Aligned([f32; 32]);
    let mut data = Aligned([1.0; 32]);
    let count = null_mut();
    // SAFETY: the data outlive the tensors.
    unsafe {
        let dims = [32i64];
        let data: *mut c_void = data.0.as_mut_ptr().cast();
        let tensor = TF_NewTensor(1, dims.as_ptr(), 1, data, 128, Some(free), count);
        assert_eq!(TF_TensorData(tensor), data, "aligned memory is kept");
        assert_eq!(freed(), 0);
        TF_DeleteTensor(tensor);
        assert_eq!(freed(), 128);
        let odd = data.cast::<u8>().add(4).cast();
        let tensor = TF_NewTensor(1, [31i64].as_ptr(), 1, odd, 124, Some(free), count);
        assert_ne!(TF_TensorData(tensor), odd, "other memory is copied");
        assert_eq!(freed(), 128 + 124);
        TF_DeleteTensor(tensor);
        assert_eq!(freed(), 128 + 124);
        let short = TF_NewTensor(1, dims.as_ptr(), 1, data, 64, Some(free), count);
        assert!(short.is_null(), "too few bytes");
        assert_eq!(freed(), 128 + 124 + 64);
    }
}

#[test]
fn strings_of_all_kinds_are_fed_and_fetched() {
    let client = Client::new();
    let text = "x".repeat(100);
    let values = ["", "short", "exactly 22 characters!", &text];
    let dims = [values.len() as i64];
    let size = values.len() * size_of::<TF_TString>();
    // SAFETY: all handles live.
    unsafe {
        let tensor = TF_AllocateTensor(7, dims.as_ptr(), 1, size);
        let strings = TF_TensorData(tensor).cast::<TF_TString>();
        for (i, value) in values.iter().enumerate() {
            TF_StringInit(strings.add(i));
            TF_StringCopy(strings.add(i), value.as_ptr().cast(), value.len());
        }
        let x = client.add("Const", "x", &[], |d| {
            TF_SetAttrTensor(d, c"value".as_ptr(), tensor, client.status);
            TF_SetAttrType(d, c"dtype".as_ptr(), 7);
        });
        client.expect_ok("const");
        let session = client.session();
        let x = TF_Output { oper: x, index: 0 };
        let mut result = null_mut();
        TF_SessionRun(
            session,
            null(),
            null(),
            null(),
            0,
            &x,
            &mut result,
            1,
            null(),
            0,
            null_mut(),
            client.status,
        );
        client.expect_ok("run");
        let found = TF_TensorData(result).cast::<TF_TString>();
        for (i, value) in values.iter().enumerate() {
            let data: *const c_char = TF_StringGetDataPointer(found.add(i));
            let len = TF_StringGetSize(found.add(i));
            let bytes = std::slice::from_raw_parts(data.cast::<u8>(), len);
            assert_eq!(bytes, value.as_bytes());
        }
        TF_DeleteTensor(tensor);
        TF_DeleteTensor(result);
        TF_DeleteSession(session, client.status);
    }
}

#[test]
fn threads_run_one_session() {
    let client = Client::new();
    let x = client.placeholder("x");
    let y = TF_Output {
        oper: client.add("Square", "y", &[x], |_| ()),
        index: 0,
    };
    let session = client.session();
    struct Shared(*mut TF_Session, TF_Output, TF_Output);
    // SAFETY: the header lets all threads run a session.
    unsafe impl Sync for Shared {}
    let shared = Shared(session, x, y);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let shared = &shared;
            scope.spawn(move || {
                let own = Client::new();
                for n in 0..50 {
                    let value = (i * 50 + n) as f32;
                    let got = own.run(shared.0, shared.1, value, shared.2);
                    assert_eq!(got, Some(value * value));
                }
            });
        }
    });
    // SAFETY: the session lives.
    unsafe { TF_DeleteSession(session, client.status) };
}
