//! The training examples learn what they should, in a shortened run.

#[path = "../examples/train_digits.rs"]
mod train_digits;
#[path = "../examples/train_lstm.rs"]
mod train_lstm;
#[path = "../examples/train_words.rs"]
mod train_words;

#[test]
fn a_memory_in_a_loop_learns_to_add() {
    let error = train_lstm::train(3, &mut []).expect("trains");
    // The error when the marks are ignored is 0.17.
    assert!(error < 0.1, "{error}");
}

#[test]
fn words_of_a_kind_become_neighbours() {
    let neighbours = train_words::train(3, &mut []).expect("trains");
    let wrong: Vec<_> = neighbours
        .iter()
        .filter(|(word, near)| {
            let kind = train_words::kind(word);
            kind.is_some() && kind != train_words::kind(near)
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A run with more epochs continues where the previous one ended, and writes its model.
#[test]
fn digits_are_learned_and_training_goes_on() {
    let name = format!("ferroflow-digits-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let first = train_digits::train(&folder, 1, &mut []).expect("trains");
    assert_eq!(first.resumed_at, None);
    let model = std::fs::read(first.model.join("saved_model.pb")).expect("a model");
    let second = train_digits::train(&folder, 2, &mut []).expect("continues");
    assert_eq!(second.resumed_at, Some(45));
    assert!(second.accuracy > 0.8, "{}", second.accuracy);
    assert_eq!(second.model, folder.join("model-2"));
    let still = std::fs::read(first.model.join("saved_model.pb")).expect("a model");
    assert_eq!(still, model);
    let again = train_digits::train(&folder, 2, &mut []).expect("nothing is left to do");
    assert_eq!(
        (again.resumed_at, again.accuracy),
        (Some(90), second.accuracy)
    );
    std::fs::remove_dir_all(folder).expect("removable");
}
