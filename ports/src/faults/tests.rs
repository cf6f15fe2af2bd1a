use super::*;

#[test]
fn a_script_plays_the_faults_of_its_operation_and_ends_calm() {
    let script = Script::of(
        "key_value.update",
        [Fault::LoseAnswer, Fault::None, Fault::Hang],
    );
    assert_eq!(script.next("key_value.get"), Fault::None);
    let played: Vec<Fault> = (0..4).map(|_| script.next("key_value.update")).collect();
    assert_eq!(
        played,
        [Fault::LoseAnswer, Fault::None, Fault::Hang, Fault::None]
    );
}
