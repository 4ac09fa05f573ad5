//! Partial runs of clients.

use crate::one_server;

use ferroflow_model::proto::*;
use one_server::{World, run};
use tonic::Code;

#[test]
fn a_partial_run_that_fails_says_why() {
    let world = World::new();
    let handle = world.session(true);
    for _ in 0..20 {
        let setup = PartialRunSetupRequest {
            session_handle: handle.clone(),
            feed: vec!["x:0".to_string(), "z:0".to_string()],
            fetch: vec!["checked:0".to_string(), "s:0".to_string()],
            ..Default::default()
        };
        let begun: PartialRunSetupResponse = world.call("PartialRunSetup", setup).unwrap();
        let part = |feed: &[(&str, f32)], fetch: &[&str]| {
            let mut request = run(&handle, feed, fetch, &[]);
            request.partial_run_handle = begun.partial_run_handle.clone();
            world.step(request)
        };
        let error = part(&[("x:0", f32::NAN)], &["checked:0"]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("not a number"), "{error}");
        let error = part(&[("z:0", 1.0)], &["s:0"]).unwrap_err();
        assert!(
            error.message().contains("Must run PartialRunSetup"),
            "{error}"
        );
    }
}

#[test]
fn a_partial_run_takes_its_feeds_one_by_one() {
    let world = World::new();
    let handle = world.session(true);
    let set_up = || -> String {
        let request = PartialRunSetupRequest {
            session_handle: handle.clone(),
            feed: vec!["x:0".to_string(), "z:0".to_string()],
            fetch: vec!["y:0".to_string(), "s:0".to_string()],
            ..Default::default()
        };
        let made: PartialRunSetupResponse = world.call("PartialRunSetup", request).unwrap();
        made.partial_run_handle
    };
    let part = |step: &str, feeds: &[(&str, f32)], fetch: &[&str]| {
        let mut request = run(&handle, feeds, fetch, &[]);
        request.partial_run_handle = step.to_string();
        world.step(request)
    };
    // Two steps at the same time do not see each other.
    let (a, b) = (set_up(), set_up());
    assert_eq!(part(&a, &[("x:0", 1.0)], &["y:0"]).unwrap(), [2.0]);
    assert_eq!(part(&b, &[("x:0", 10.0)], &["y:0"]).unwrap(), [20.0]);
    for (feeds, fetch, message) in [
        (
            &[("x:0", 1.0)][..],
            &[][..],
            "The feed x:0 has already been fed.",
        ),
        (
            &[][..],
            &["y:0"][..],
            "The fetch y:0 has already been fetched.",
        ),
        (
            &[][..],
            &["s:0"][..],
            "Fetch z:0 can't be computed from the feeds",
        ),
        (
            &[("w:0", 1.0)][..],
            &[][..],
            "was not specified in partial_run_setup",
        ),
    ] {
        let error = part(&a, feeds, fetch).unwrap_err();
        assert!(error.message().contains(message), "{}", error.message());
    }
    assert_eq!(part(&a, &[("z:0", 5.0)], &["s:0"]).unwrap(), [7.0]);
    assert_eq!(part(&b, &[("z:0", 6.0)], &["s:0"]).unwrap(), [26.0]);
    let over = part(&a, &[], &["s:0"]).unwrap_err();
    assert_eq!(
        over.message(),
        "Must run PartialRunSetup before performing partial runs"
    );
}

#[test]
fn a_partial_run_that_is_abandoned_does_not_count_as_used() {
    let world = World::new();
    let request = PartialRunSetupRequest {
        session_handle: world.session(true),
        feed: vec!["x:0".into()],
        fetch: vec!["y:0".into()],
        ..Default::default()
    };
    let made: PartialRunSetupResponse = world.call("PartialRunSetup", request).unwrap();
    assert!(!made.partial_run_handle.is_empty());
    // Or stopping would wait for it.
    world.await_steps(0);
}
