//! `TF_Server`: a server of TensorFlow's gRPC service in this process (`tensorflow/c/c_api.h`).

use crate::TF_Status;
use crate::guard::{delete, guard, handle, list, shared};
use ferroflow_base::{Result, failed_precondition, internal, invalid_argument};
use ferroflow_model::proto::ServerDef;
use ferroflow_remote::{MasterOptions, Server, ServerOptions};
use prost::Message;
use std::ffi::{CString, c_char, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A server: bound, then started, then stopped.
pub struct TF_Server {
    target: CString,
    state: Mutex<State>,
}

enum State {
    Bound(Box<Server>),
    Running(oneshot::Sender<()>, JoinHandle<()>),
    Stopping(JoinHandle<()>),
    Stopped,
}

impl TF_Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut state = self.state();
        *state = match std::mem::replace(&mut *state, State::Stopped) {
            State::Running(stop, thread) => {
                // The receiver is gone if the server has ended by itself.
                let _ = stop.send(());
                State::Stopping(thread)
            }
            other => other,
        };
    }

    fn join(&self) -> Result<()> {
        let state = std::mem::replace(&mut *self.state(), State::Stopped);
        let thread = match state {
            // The sender is kept until the server ends.
            State::Running(stop, thread) => {
                let ended = thread.join();
                drop(stop);
                ended
            }
            State::Stopping(thread) => thread.join(),
            State::Bound(_) | State::Stopped => return Ok(()),
        };
        thread.map_err(|_| internal!("the server's thread panicked"))
    }
}

impl Drop for TF_Server {
    fn drop(&mut self) {
        self.stop();
        // There is no caller left for an error.
        let _ = self.join();
    }
}

/// The port of the server's own task.
fn port_of(def: &ServerDef) -> Result<u16> {
    let jobs = def.cluster.iter().flat_map(|c| &c.job);
    let job = jobs.into_iter().find(|job| job.name == def.job_name);
    let job = job
        .ok_or_else(|| invalid_argument!("Job \"{}\" was not defined in cluster", def.job_name))?;
    let address = job.tasks.get(&def.task_index).ok_or_else(|| {
        invalid_argument!(
            "Task {} was not defined in job \"{}\"",
            def.task_index,
            def.job_name
        )
    })?;
    let port = address
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse().ok());
    port.ok_or_else(|| {
        invalid_argument!("Could not parse port for local server from \"{address}\"")
    })
}

/// Creates a server of a serialized `ServerDef`, which listens at its task's port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewServer(
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) -> *mut TF_Server {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let bytes = unsafe { list(proto.cast::<u8>(), proto_len) };
        let def = ServerDef::decode(bytes).map_err(|_| {
            invalid_argument!("Could not parse provided bytes into a ServerDef protocol buffer")
        })?;
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port_of(&def)?);
        let server = Server::bind(ServerOptions {
            address,
            monitor: None,
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions {
                server: ferroflow_remote::ServerDef::from_bytes(bytes)?,
                ..Default::default()
            },
        })?;
        let target = format!("grpc://localhost:{}", server.address().port());
        Ok(handle(TF_Server {
            target: CString::new(target).unwrap_or_default(),
            state: Mutex::new(State::Bound(Box::new(server))),
        }))
    })
}

/// Starts serving.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ServerStart(server: *mut TF_Server, status: *mut TF_Status) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let mut state = unsafe { shared(server) }?.state();
        *state = match std::mem::replace(&mut *state, State::Stopped) {
            State::Bound(server) => {
                let (stop, stopped) = oneshot::channel::<()>();
                let stopped = async {
                    // A sender that was dropped is a server that was deleted.
                    let _ = stopped.await;
                };
                State::Running(stop, std::thread::spawn(move || server.run(stopped)))
            }
            State::Running(stop, thread) => State::Running(stop, thread),
            State::Stopping(_) | State::Stopped => {
                return Err(failed_precondition!("Server has stopped."));
            }
        };
        Ok(())
    });
}

/// Stops serving.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ServerStop(server: *mut TF_Server, status: *mut TF_Status) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        unsafe { shared(server) }?.stop();
        Ok(())
    });
}

/// Waits until the server has stopped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ServerJoin(server: *mut TF_Server, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    guard(status, (), || unsafe { shared(server) }?.join());
}

/// Returns the target of sessions on this server; it lives as long as the server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ServerTarget(server: *mut TF_Server) -> *const c_char {
    // SAFETY: the contract of the header.
    unsafe { server.as_ref() }.map_or(std::ptr::null(), |s| s.target.as_ptr())
}

/// Stops and deletes a server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteServer(server: *mut TF_Server) {
    // SAFETY: the contract of the header.
    unsafe { delete(server) }
}
