//! `TF_DeprecatedSession`: a session that is given GraphDefs (`tensorflow/c/c_api.h`).

use crate::guard::{delete, guard, handle, list, list_mut, shared, text, texts};
use crate::run_metadata::Observed;
use crate::session::{give, report};
use crate::session_options::{TF_DeviceList, TF_SessionOptions};
use crate::{TF_Buffer, TF_Status, TF_Tensor, placement_log};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::GraphDef;
use ferroflow_remote::{GrpcSession, GrpcStep};
use ferroflow_runtime::{RunOptions, Session, Signature, Tensor};
use prost::Message;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A session that is given graphs as messages.
pub struct TF_DeprecatedSession {
    options: TF_SessionOptions,
    /// The session, if a master of another process runs it.
    grpc: Option<GrpcSession>,
    /// Else the session and its version; none before the first graph.
    state: Mutex<Option<(Arc<Session>, i64)>>,
}

impl TF_DeprecatedSession {
    fn state(&self) -> MutexGuard<'_, Option<(Arc<Session>, i64)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> Result<Arc<Session>> {
        let found = self.state().as_ref().map(|(session, _)| session.clone());
        found.ok_or_else(|| invalid_argument!("Session was not created with a graph before Run()!"))
    }

    fn run_options(&self) -> RunOptions {
        RunOptions {
            timeout: self.options.step_limit(),
            ..Default::default()
        }
    }
}

/// Creates a session without a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewDeprecatedSession(
    options: *const TF_SessionOptions,
    status: *mut TF_Status,
) -> *mut TF_DeprecatedSession {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let options = unsafe { shared(options) }?.clone();
        let grpc = options.master()?;
        let grpc = grpc.map(|target| GrpcSession::new(target, options.config().clone()));
        Ok(handle(TF_DeprecatedSession {
            grpc: grpc.transpose()?,
            options,
            state: Mutex::default(),
        }))
    })
}

/// Ends the session's steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CloseDeprecatedSession(
    session: *mut TF_DeprecatedSession,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let session = unsafe { shared(session) }?;
        if let Some((session, _)) = &*session.state() {
            session.close_in_process();
        }
        session.grpc.as_ref().map_or(Ok(()), GrpcSession::close)
    });
}

/// Deletes a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteDeprecatedSession(
    session: *mut TF_DeprecatedSession,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe { delete(session) };
    guard(status, (), || Ok(()));
}

/// Forgets the variables of a master's tasks; the resources of sessions of this process are their own, so nothing
/// is left to forget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_Reset(
    opt: *const TF_SessionOptions,
    containers: *const *const c_char,
    ncontainers: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (options, containers) = unsafe { (shared(opt)?, texts(containers, ncontainers)?) };
        match options.master()? {
            Some(target) => GrpcSession::reset(target, containers),
            None => Ok(()),
        }
    });
}

/// Adds a serialized GraphDef to the session's graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_ExtendGraph(
    session: *mut TF_DeprecatedSession,
    proto: *const c_void,
    proto_len: usize,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (session, bytes) = unsafe { (shared(session)?, list(proto.cast::<u8>(), proto_len)) };
        let def = GraphDef::decode(bytes).map_err(|_| invalid_argument!("Invalid GraphDef"))?;
        if let Some(grpc) = &session.grpc {
            return grpc.extend(def);
        }
        let new = match session.options.config().log_device_placement {
            true => def.node.clone(),
            false => Vec::new(),
        };
        let mut state = session.state();
        let own = match &mut *state {
            None => {
                let own = Session::create(def, session.options.to_engine()?)?;
                &state.insert((Arc::new(own), 0)).0
            }
            Some((own, version)) => {
                *version = own.extend(def, *version)?;
                own
            }
        };
        placement_log::log(own, &new);
        Ok(())
    });
}

/// Tensors behind an array, which are deleted: these functions take them over.
///
/// # Safety
/// `tensors` is NULL or has `n` tensors.
unsafe fn take(tensors: *const *mut TF_Tensor, n: c_int) -> Result<Vec<Tensor>> {
    // SAFETY: as this function's.
    let tensors = unsafe { list(tensors, n) };
    // SAFETY: as this function's.
    let values = tensors
        .iter()
        .map(|t| unsafe { shared(*t) }?.to_engine())
        .collect();
    for tensor in tensors {
        // SAFETY: as this function's.
        unsafe { delete(*tensor) };
    }
    values
}

/// Runs what the outputs and targets need; takes the inputs over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_Run(
    session: *mut TF_DeprecatedSession,
    run_options: *const TF_Buffer,
    input_names: *const *const c_char,
    inputs: *const *mut TF_Tensor,
    ninputs: c_int,
    output_names: *const *const c_char,
    outputs: *mut *mut TF_Tensor,
    noutputs: c_int,
    target_oper_names: *const *const c_char,
    ntargets: c_int,
    run_metadata: *mut TF_Buffer,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (session, args, signature, to, mut observed) = unsafe {
            let to = list_mut(outputs, noutputs);
            to.fill(std::ptr::null_mut());
            let args = take(inputs, ninputs)?;
            let signature = Signature {
                feeds: texts(input_names, ninputs)?,
                fetches: texts(output_names, noutputs)?,
                targets: texts(target_oper_names, ntargets)?,
            };
            let observed = Observed::new(run_options, run_metadata)?;
            (shared(session)?, args, signature, to, observed)
        };
        let (results, metadata) = match &session.grpc {
            Some(grpc) => {
                let mut step = GrpcStep::new(signature, args);
                step.options = observed.message.take();
                let (results, metadata) = grpc.run(step)?;
                (results, Some(metadata))
            }
            None => {
                let own = session.session()?;
                let callable = own.callable(&signature)?;
                observed.limit(session.run_options().timeout);
                let results = own.run_callable(&callable, args, &observed.options)?;
                let metadata = observed.metadata(&own, || Ok(signature))?;
                (results, metadata)
            }
        };
        // SAFETY: the contract of the header.
        unsafe {
            give(results, to)?;
            report(metadata, run_metadata)
        }
    });
}

/// Begins a step that is fed and fetched in parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_PRunSetup(
    session: *mut TF_DeprecatedSession,
    input_names: *const *const c_char,
    ninputs: c_int,
    output_names: *const *const c_char,
    noutputs: c_int,
    target_oper_names: *const *const c_char,
    ntargets: c_int,
    out_handle: *mut *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (session, out, signature) = unsafe {
            let signature = Signature {
                feeds: texts(input_names, ninputs)?,
                fetches: texts(output_names, noutputs)?,
                targets: texts(target_oper_names, ntargets)?,
            };
            (
                shared(session)?,
                crate::guard::unique(out_handle)?,
                signature,
            )
        };
        *out = std::ptr::null();
        let text = match &session.grpc {
            Some(grpc) => grpc.partial_run_setup(&signature)?,
            None => session.session()?.partial_run_setup(&signature)?,
        };
        *out = CString::new(text).unwrap_or_default().into_raw();
        Ok(())
    });
}

/// Continues a step in parts; takes the inputs over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_PRun(
    session: *mut TF_DeprecatedSession,
    prun_handle: *const c_char,
    input_names: *const *const c_char,
    inputs: *const *mut TF_Tensor,
    ninputs: c_int,
    output_names: *const *const c_char,
    outputs: *mut *mut TF_Tensor,
    noutputs: c_int,
    _target_oper_names: *const *const c_char,
    _ntargets: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (session, name, args, signature, to) = unsafe {
            let to = list_mut(outputs, noutputs);
            to.fill(std::ptr::null_mut());
            let args = take(inputs, ninputs)?;
            let signature = Signature {
                feeds: texts(input_names, ninputs)?,
                fetches: texts(output_names, noutputs)?,
                targets: Vec::new(),
            };
            (shared(session)?, text(prun_handle)?, args, signature, to)
        };
        let results = match &session.grpc {
            Some(grpc) => {
                let mut step = GrpcStep::new(signature, args);
                step.partial_run = name.to_string();
                grpc.run(step)?.0
            }
            None => {
                let (own, options) = (session.session()?, session.run_options());
                let feeds = signature.feeds.into_iter().zip(args).collect();
                own.partial_run(name, feeds, &signature.fetches, &options)?
            }
        };
        // SAFETY: the contract of the header.
        unsafe { give(results, to) }
    });
}

/// Returns the devices of a session, which the client deletes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeprecatedSessionListDevices(
    session: *mut TF_DeprecatedSession,
    status: *mut TF_Status,
) -> *mut TF_DeviceList {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let session = unsafe { shared(session) }?;
        Ok(handle(TF_DeviceList::of_session(
            session.grpc.as_ref(),
            &session.options.devices(),
        )?))
    })
}
