use super::*;

/// Draws these numbers in turn.
#[derive(Debug)]
struct Drawn(Mutex<VecDeque<u64>>);

impl Entropy for Drawn {
    fn next_u64(&self) -> u64 {
        self.0
            .lock()
            .expect("no draw panics")
            .pop_front()
            .expect("as many numbers as are drawn")
    }
}

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

#[test]
fn weather_divides_a_thousand_by_its_rates() {
    let rates = Rates {
        delay: 100,
        refuse: 10,
        lose_answer: 5,
        delay_ms_max: 9,
    };
    let drawn = [0, 9, 10, 14, 15, 3, 114, 109, 115, 999, 1_000];
    let weather = Weather::new(rates, Arc::new(Drawn(Mutex::new(drawn.into()))));
    let faults: Vec<Fault> = (0..9).map(|_| weather.next("queue.send")).collect();
    assert_eq!(
        faults,
        [
            Fault::RefuseBefore,
            Fault::RefuseBefore,
            Fault::LoseAnswer,
            Fault::LoseAnswer,
            Fault::Delay(Duration::from_millis(3)),
            Fault::Delay(Duration::from_millis(9)),
            Fault::None,
            Fault::None,
            Fault::RefuseBefore,
        ]
    );
}

#[test]
#[should_panic(expected = "cannot fail")]
fn more_faults_than_calls_are_refused() {
    let rates = Rates {
        delay: 600,
        refuse: 600,
        ..Rates::default()
    };
    Weather::new(rates, Arc::new(Drawn(Mutex::default())));
}
