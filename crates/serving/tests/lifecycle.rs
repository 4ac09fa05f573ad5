//! Versions appear, break and vanish while the server runs.

use crate::support;

use ferroflow_model::proto::serving::model_version_status::State;
use ferroflow_model::proto::serving::*;
use ferroflow_serving::{ModelSource, ServerOptions, VersionPolicy};
use ferroflow_testkit::folder::Folder;
use std::fs;
use std::path::Path;
use std::time::Duration;
use support::{World, models, options};

/// One step of a scenario.
enum Do {
    /// Copies version 1 or 2 of the model `half` under another number.
    Add(i64, i64),
    /// Adds a version whose file is cut off.
    Break(i64),
    /// Completes a version that was broken.
    Mend(i64),
    Remove(i64),
    /// Removes the directory of the model.
    RemoveAll,
}
use Do::{Add, Break, Mend, Remove, RemoveAll};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn apply(step: &Do, model: &Path) {
    let at = |n: &i64| model.join(n.to_string());
    let source = |n: &i64| models().join("half").join(n.to_string());
    match step {
        Add(n, like) => {
            // Moved in as a whole, as deployments do.
            let aside = model.join("incoming");
            copy(&source(like), &aside);
            fs::rename(aside, at(n)).unwrap();
        }
        Break(n) => {
            copy(&source(&1), &at(n));
            let file = at(n).join("saved_model.pb");
            let bytes = fs::read(&file).unwrap();
            fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
        }
        Mend(n) => copy(&source(&1), &at(n)),
        Remove(n) => fs::remove_dir_all(at(n)).unwrap(),
        RemoveAll => fs::remove_dir_all(model).unwrap(),
    }
}

fn states(world: &World) -> Vec<(i64, State)> {
    let spec = ModelSpec {
        name: "m".to_string(),
        ..Default::default()
    };
    let versions = world.front.manager.status(Some(&spec)).unwrap_or_default();
    versions.iter().map(|v| (v.version, v.state)).collect()
}

/// Steps, the states of the versions after them, and a version that answers.
type Group<'a> = (&'a [Do], &'a [(i64, State)], Option<i64>);

/// Applies each group of steps, polls, and compares the states of the versions and the answer of the newest one; the
/// last one is the version that answers, or none.
fn check(policy: VersionPolicy, groups: &[Group<'_>]) {
    let folder = Folder::new("lifecycle");
    let model = folder.0.join("m");
    fs::create_dir_all(&model).unwrap();
    let mut source = ModelSource::latest("m", &model);
    source.policy = policy;
    let world = World::new(options(vec![source]));
    for (i, (steps, expected, answers)) in groups.iter().enumerate() {
        steps.iter().for_each(|step| apply(step, &model));
        world.front.manager.poll();
        world.front.manager.await_changes();
        assert_eq!(states(&world), *expected, "group {i}");
        let (status, body) = world.predict("m");
        assert_eq!(
            status,
            if answers.is_some() { 200 } else { 404 },
            "group {i}: {body}"
        );
        if let Some(version) = answers {
            assert_eq!(
                world.predict(&format!("m/versions/{version}")).0,
                200,
                "group {i}"
            );
        }
    }
}

#[test]
fn versions_follow_the_file_system() {
    use State::{Available, End};
    check(
        VersionPolicy::Latest(1),
        &[
            (&[], &[], None),
            (&[Add(1, 1)], &[(1, Available)], Some(1)),
            (&[Add(2, 2)], &[(2, Available), (1, End)], Some(2)),
            // A broken version does not replace the one that serves.
            (&[Break(3)], &[(3, End), (2, Available), (1, End)], Some(2)),
            // It is tried again once its files have changed.
            (&[Mend(3)], &[(3, Available), (2, End), (1, End)], Some(3)),
            // An older one comes back.
            (&[Remove(3)], &[(3, End), (2, Available), (1, End)], Some(2)),
            // Without its directory the model is assumed to be unavailable, not gone.
            (&[RemoveAll], &[(3, End), (2, Available), (1, End)], Some(2)),
        ],
    );
    check(
        VersionPolicy::Latest(2),
        &[(
            &[Add(1, 1), Add(2, 2), Add(10, 1)],
            &[(10, Available), (2, Available)],
            Some(2),
        )],
    );
    check(
        VersionPolicy::All,
        &[
            (
                &[Add(1, 1), Add(2, 2)],
                &[(2, Available), (1, Available)],
                Some(1),
            ),
            (&[Remove(1), Remove(2)], &[(2, End), (1, End)], None),
        ],
    );
    check(
        VersionPolicy::Specific([2, 5].into()),
        &[
            (
                &[Add(1, 1), Add(2, 2), Add(3, 1)],
                &[(2, Available)],
                Some(2),
            ),
            (&[Add(5, 1)], &[(5, Available), (2, Available)], Some(2)),
        ],
    );
}

#[test]
fn a_version_is_swapped_under_load() {
    let folder = Folder::new("swap");
    let model = folder.0.join("m");
    fs::create_dir_all(&model).unwrap();
    apply(&Add(1, 1), &model);
    let world = World::new(options(vec![ModelSource::latest("m", &model)]));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut n = 0;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) || n == 0 {
                        let (status, body) = world.predict("m");
                        assert_eq!(status, 200, "{body}");
                        n += 1;
                    }
                })
            })
            .collect();
        for version in 2..8 {
            apply(&Add(version, 1 + version % 2), &model);
            world.front.manager.poll();
            world.front.manager.await_changes();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        clients.into_iter().for_each(|c| c.join().unwrap());
    });
    assert_eq!(states(&world)[0], (7, State::Available));
}

#[test]
fn files_are_models_too() {
    let folder = Folder::new("files");
    let graph = "
        node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }
        node { name: 'y' op: 'Square' input: 'x' attr { key: 'T' value { type: DT_FLOAT } } }";
    let text = folder.0.join("square.pbtxt");
    fs::write(&text, graph).unwrap();
    let session = ferroflow_runtime::Session::from_text(graph, Default::default()).unwrap();
    let signature = ferroflow_runtime::Signature {
        feeds: vec!["x:0".to_string()],
        fetches: vec!["y:0".to_string()],
        targets: vec![],
    };
    let bef = folder.0.join("square.bef");
    let request = ferroflow_runtime::CompileRequest {
        signature,
        feed_keys: vec!["x".to_string()],
        fetch_keys: vec!["y".to_string()],
        plain: false,
        ..Default::default()
    };
    session.compile_to(&bef, &request).unwrap();
    let world = World::new(options(vec![
        ModelSource::latest("text", &text),
        ModelSource::latest("bef", &bef),
        ModelSource::latest("saved", &models().join("half/1")),
    ]));
    for (name, expected) in [("text", "4.0"), ("bef", "4.0"), ("saved", "3.0")] {
        let (status, body) = world.predict(name);
        assert_eq!(
            (status, body.contains(expected)),
            (200, true),
            "{name}: {body}"
        );
        let (status, body) = world.json("GET", &format!("/v1/models/{name}/metadata"), "");
        assert_eq!(
            (status, body.contains("DT_FLOAT")),
            (200, true),
            "{name}: {body}"
        );
    }
}

#[test]
fn compiled_models_are_cached() {
    let folder = Folder::new("cache");
    let with_cache = || {
        let mut options = options(vec![ModelSource::latest("half", &models().join("half"))]);
        options.manager.load.cache = Some(folder.0.join("cache"));
        World::new(options)
    };
    let answers = [(), ()].map(|()| with_cache().predict("half"));
    assert_eq!(answers[0].0, 200);
    assert_eq!(answers[0], answers[1]);
    let files: Vec<_> = fs::read_dir(folder.0.join("cache")).unwrap().collect();
    assert_eq!(files.len(), 1);
}

#[test]
fn the_cache_keeps_what_is_used() {
    let folder = Folder::new("cache_kept");
    let (model, cache) = (folder.0.join("half"), folder.0.join("cache"));
    let kept = || {
        let mut options = options(vec![ModelSource::latest("half", &model)]);
        options.manager.load.cache = Some(cache.clone());
        assert_eq!(World::new(options).predict("half").0, 200);
        let entries = fs::read_dir(&cache).unwrap().flatten();
        let names = entries.map(|e| e.file_name().into_string().unwrap());
        let versions = names.map(|n| n.rsplit_once('-').unwrap().0.to_string());
        let mut versions: Vec<String> = versions.collect();
        versions.sort();
        versions
    };
    // Each step and the versions that are cached after it: those of folders that exist, each once.
    for (step, expected) in [
        (Add(1, 1), &["half-1"][..]),
        (Add(2, 2), &["half-1", "half-2"]),
        (Remove(1), &["half-1", "half-2"]),
        (Add(3, 1), &["half-2", "half-3"]),
        (Mend(3), &["half-2", "half-3"]),
    ] {
        apply(&step, &model);
        assert_eq!(kept(), expected);
    }
}

#[test]
fn a_configuration_that_was_refused_is_tried_again() {
    let folder = Folder::new("label_later");
    let (model, config) = (folder.0.join("half"), folder.0.join("models.config"));
    apply(&Add(1, 1), &model);
    let write = |label: &str| {
        let text = format!(
            "model_config_list {{ config {{ name: 'half' base_path: 'file://{}' model_platform: \
             'tensorflow' model_version_policy {{ all {{}} }} {label} }} }}",
            model.display()
        );
        fs::write(&config, text).unwrap();
    };
    write("");
    let mut options = options(Vec::new());
    options.model_config = Some(config.clone());
    options.config_poll = Duration::from_millis(5);
    let world = World::new(options);
    let status = |path: &str| world.json("GET", &format!("/v1/models/half{path}"), "").0;
    assert_eq!(status("/versions/1"), 200);
    // The label's version is not there yet.
    write("version_labels { key: 'next' value: 2 }");
    apply(&Add(2, 2), &model);
    while status("/labels/next") != 200 {
        std::thread::yield_now();
    }
    // A client replaces the models; the file has the last word.
    reload(&world, &[("many", &models().join("many"))], &[]).unwrap();
    while status("/labels/next") != 200 {
        std::thread::yield_now();
    }
    fs::write(&config, "# being written").unwrap();
    let read = ferroflow_serving::config::read_models(&config);
    assert_eq!(read.unwrap(), None);
}

fn reload(
    world: &World,
    names: &[(&str, &Path)],
    labels: &[(&str, i64)],
) -> Result<(), tonic::Status> {
    let config = names.iter().map(|(name, path)| ModelConfig {
        name: name.to_string(),
        base_path: path.display().to_string(),
        model_platform: "tensorflow".to_string(),
        version_labels: labels.iter().map(|(l, v)| (l.to_string(), *v)).collect(),
        ..Default::default()
    });
    let list = ModelConfigList {
        config: config.collect(),
    };
    let request = ReloadConfigRequest {
        config: Some(ModelServerConfig {
            config: Some(model_server_config::Config::ModelConfigList(list)),
        }),
        metric_names: vec!["/tensorflow/serving/request_count".to_string()],
    };
    let path = "/tensorflow.serving.ModelService/HandleReloadConfigRequest";
    let answer: ReloadConfigResponse = world.call(path, request)?;
    assert_eq!(answer.metric.len(), 1);
    Ok(())
}

#[test]
fn the_configuration_is_replaced() {
    let world = World::new(options(vec![ModelSource::latest(
        "half",
        &models().join("half"),
    )]));
    let (half, many) = (models().join("half"), models().join("many"));
    reload(&world, &[("half", &half), ("other", &half)], &[("new", 2)]).unwrap();
    assert_eq!(world.predict("half/labels/new").0, 200);
    assert_eq!(world.predict("other").0, 200);
    let error = reload(&world, &[("half", &half)], &[("old", 1)]).unwrap_err();
    assert_eq!(error.code(), tonic::Code::FailedPrecondition);
    let text = "Request to assign label to version 1 of model half, which is not currently available for inference";
    assert_eq!(error.message(), text);
    for (names, expected) in [
        (
            vec![("half", half.as_path()), ("half", &half)],
            "Illegal to list model half multiple times in config list",
        ),
        (
            vec![("half", Path::new("models"))],
            "Expected model half to have an absolute path or URI; got base_path()=models",
        ),
    ] {
        let error = reload(&world, &names, &[]).unwrap_err();
        assert_eq!(
            (error.code(), error.message()),
            (tonic::Code::InvalidArgument, expected)
        );
    }
    reload(&world, &[("many", &many)], &[]).unwrap();
    world.front.manager.await_changes();
    assert_eq!(world.predict("half").0, 404);
    assert_eq!(world.json("GET", "/v1/models/half", "").0, 404);
    assert_eq!(world.json("GET", "/v1/models/many", "").0, 200);
}

#[test]
fn models_beyond_the_budget_are_refused() {
    let with_budget = |bytes| {
        let mut options: ServerOptions =
            options(vec![ModelSource::latest("half", &models().join("half"))]);
        options.manager.memory_budget = Some(bytes);
        World::new(options)
    };
    assert_eq!(with_budget(1 << 20).predict("half").0, 200);
    let world = with_budget(1000);
    assert_eq!(world.predict("half").0, 404);
    let (_, status) = world.json("GET", "/v1/models/half", "");
    assert!(
        status.contains("RESOURCE_EXHAUSTED")
            && status.contains("Insufficient resources to load servable {name: half version: 2}"),
        "{status}"
    );
}
