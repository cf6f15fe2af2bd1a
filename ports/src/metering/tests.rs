use super::*;

fn meter_with(counts: &[(Operation, u64)]) -> Meter {
    let meter = Meter::default();
    for (operation, units) in counts {
        meter.count(
            *operation,
            Count {
                calls: 1,
                units: *units,
                ..Count::default()
            },
        );
    }
    meter
}

fn money(text: &str) -> Money {
    Money::parse(text).expect("an amount of money")
}

#[test]
fn money_is_read_and_written_exactly() {
    for text in ["0", "1", "0.5", "0.0000166667", "1234567.000000000001"] {
        assert_eq!(money(text).to_string(), text);
    }
    assert_eq!(money("0.50").to_string(), "0.5");
    for text in ["", ".5", "-1", "1e3", "1,5", "0.0000000000001", "1.2.3"] {
        assert_eq!(Money::parse(text), None, "{text:?}");
    }
}

#[test]
fn operations_are_counted_where_their_name_says() {
    for (index, operation) in Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation as usize, index, "{operation}");
    }
    let mut names = Operation::ALL.map(Operation::name);
    names.sort_unstable();
    assert!(
        names.is_sorted_by(|left, right| left < right),
        "each name is one operation's"
    );
}

#[test]
fn the_shipped_book_has_the_papers_prices() {
    let book = PriceBook::aws_us_east_1();
    assert_eq!(book.unit_bytes(), UnitBytes::default());
    let millions = 1_000_000;
    let bill = book.price(
        &meter_with(&[
            (Operation::KeyValueGet, millions),
            (Operation::KeyValueUpdate, millions),
            (Operation::QueueSend, millions),
            (Operation::FunctionRun, millions),
            (Operation::ObjectPut, millions),
            (Operation::ObjectGet, millions),
        ])
        .usage(),
    );
    let expected = ["0.25", "1.25", "0.5", "0.2", "0", "5", "0.4"].map(money);
    assert_eq!(bill.lines().map(|(_, amount)| amount), expected);
    assert_eq!(bill.total(), money("7.6"));
}

/// The paper's equation 2 without its functions: two pushes, three writes of 1 kB, one object.
#[test]
fn a_write_costs_what_the_paper_says() {
    let usage = meter_with(&[
        (Operation::QueueSend, 2),
        (Operation::KeyValueUpdate, 3),
        (Operation::ObjectPut, 1),
    ])
    .usage();
    assert_eq!(
        PriceBook::aws_us_east_1().price(&usage).total(),
        money("0.00000975")
    );
}

#[test]
fn compute_is_billed_by_gigabyte_seconds() {
    let meter = Meter::default();
    meter.computed(512 * 2_000);
    let bill = PriceBook::aws_us_east_1().price(&meter.usage());
    assert_eq!(bill.function_compute, money("0.0000166667"));
}

#[test]
fn a_month_of_storage_is_billed_by_the_byte() {
    let stored = StoredBytes {
        key_value: 2 << 30,
        objects: 10 << 30,
    };
    assert_eq!(
        PriceBook::aws_us_east_1().storage_month(stored),
        money("0.73")
    );
}

#[test]
fn nothing_used_costs_nothing() {
    let usage = Meter::default().usage();
    assert_eq!((usage.calls(), usage.operations().count()), (0, 0));
    assert_eq!(PriceBook::aws_us_east_1().price(&usage).total(), Money(0));
}

#[test]
fn units_are_rounded_up_item_by_item() {
    let carried = Carried::items([1, 1024, 1025, 0], 1024);
    assert_eq!((carried.items, carried.bytes, carried.units), (4, 2050, 5));
    let request = Carried::request(3, 65_537, 65_536);
    assert_eq!((request.items, request.units), (3, 2));
}

#[test]
fn usage_between_two_moments_is_their_difference() {
    let meter = meter_with(&[(Operation::KeyValueGet, 5)]);
    let earlier = meter.usage();
    meter.count(
        Operation::KeyValueGet,
        Count {
            calls: 2,
            units: 7,
            ..Count::default()
        },
    );
    let between = meter.usage().since(&earlier);
    assert_eq!(
        between.of(Operation::KeyValueGet),
        Count {
            calls: 2,
            units: 7,
            ..Count::default()
        }
    );
    assert_eq!(between.calls(), 2);
}

#[test]
fn a_bad_book_is_refused_with_its_fault() {
    let shipped = include_str!("../../prices/aws-us-east-1.toml");
    let zero = shipped.replace("per = 1_000_000", "per = 0");
    assert!(
        matches!(PriceBook::parse(&zero), Err(BookError::PerZero(unit)) if unit.contains("read"))
    );
    for (from, to) in [
        ("\"0.25\"", "\"a quarter\""),
        ("region", "regoin"),
        ("[object_read]", "[objects]"),
    ] {
        let answer = PriceBook::parse(&shipped.replace(from, to));
        assert!(matches!(answer, Err(BookError::Malformed(_))), "{to}");
    }
}
