//! The examples that train learn what they should, in a fraction of their time.

#[path = "../examples/train_lstm.rs"]
mod train_lstm;
#[path = "../examples/train_words.rs"]
mod train_words;

#[test]
fn a_memory_in_a_loop_learns_to_add() {
    let error = train_lstm::train(3, &mut []).expect("trains");
    // What is left when the marks are ignored.
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
