//! Steps that are fed and fetched in parts (`tensorflow/c/c_api.h`).

use crate::graph::{TF_Operation, TF_Output};
use crate::guard::{guard, list, list_mut, shared, text, unique};
use crate::session::{Request, TF_Session, give};
use crate::{TF_Status, TF_Tensor};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_remote::GrpcStep;
use ferroflow_runtime::RunOptions;
use std::ffi::{CString, c_char, c_int};

/// Begins a step that is fed and fetched in parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SessionPRunSetup(
    session: *mut TF_Session,
    inputs: *const TF_Output,
    ninputs: c_int,
    outputs: *const TF_Output,
    noutputs: c_int,
    target_opers: *const *const TF_Operation,
    ntargets: c_int,
    out_handle: *mut *const c_char,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (session, out, request) = unsafe {
            let request = Request::new(
                (inputs, ninputs),
                (outputs, noutputs),
                (target_opers, ntargets),
            );
            (shared(session)?, unique(out_handle)?, request)
        };
        *out = std::ptr::null();
        session.extend()?;
        // SAFETY: the contract of the header.
        let signature = unsafe { request.signature() }?;
        let text = match session.session() {
            Ok(own) => own.partial_run_setup(&signature)?,
            Err(grpc) => grpc.partial_run_setup(&signature)?,
        };
        *out = CString::new(text).unwrap_or_default().into_raw();
        Ok(())
    });
}

/// Continues a step in parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SessionPRun(
    session: *mut TF_Session,
    prun_handle: *const c_char,
    inputs: *const TF_Output,
    input_values: *const *const TF_Tensor,
    ninputs: c_int,
    outputs: *const TF_Output,
    output_values: *mut *mut TF_Tensor,
    noutputs: c_int,
    target_opers: *const *const TF_Operation,
    ntargets: c_int,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let to = unsafe { list_mut(output_values, noutputs) };
        to.fill(std::ptr::null_mut());
        // SAFETY: the contract of the header.
        let (session, name, request, values) = unsafe {
            let request = Request::new(
                (inputs, ninputs),
                (outputs, noutputs),
                (target_opers, ntargets),
            );
            let values = list(input_values, ninputs);
            (shared(session)?, text(prun_handle)?, request, values)
        };
        // SAFETY: the contract of the header.
        let signature = unsafe { request.signature() }?;
        // SAFETY: the contract of the header.
        let tensors = values.iter().map(|v| unsafe { shared(*v) }?.to_engine());
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let results = match session.session() {
            Err(grpc) => {
                let mut step = GrpcStep::new(signature, tensors);
                step.partial_run = name.to_string();
                grpc.run(step)?.0
            }
            Ok(own) if own.has_partial_run(name) => {
                let options = RunOptions {
                    timeout: session.step_limit,
                    ..Default::default()
                };
                let feeds = signature.feeds.into_iter().zip(tensors).collect();
                own.partial_run(name, feeds, &signature.fetches, &options)?
            }
            Ok(_) => {
                return Err(invalid_argument!(
                    "Must run 'setup' before performing partial runs!"
                ));
            }
        };
        // SAFETY: the contract of the header.
        unsafe { give(results, to) }
    });
}

/// Deletes the handle of a step in parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeletePRunHandle(prun_handle: *const c_char) {
    if !prun_handle.is_null() {
        // SAFETY: the contract of the header: `TF_SessionPRunSetup` made it.
        drop(unsafe { CString::from_raw(prun_handle.cast_mut()) });
    }
}
