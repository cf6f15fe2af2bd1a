//! Counts of a server become charges: how many units of which price, by service and category.

use std::collections::BTreeMap;

use anyhow::ensure;
use http_frontend::{
    Status,
    status::{Invocations, Metered, Usage},
};
use serde::{Deserialize, Serialize};

use super::price_book::{GIB, Price, PriceBook};

/// The hours of a month as clouds count them.
const HOURS_PER_MONTH: f64 = 730.0;
const READ_UNIT_BYTES: u64 = 4096;
const WRITE_UNIT_BYTES: u64 = 1024;

/// The counts of a server at a moment, or between two.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// The wall clock of the reader, in milliseconds since 1970.
    at_ms: u64,
    /// The time that they cover, up to `at_ms`.
    pub(super) covered_ms: u64,
    pub(super) usage: BTreeMap<String, Vec<Usage>>,
    pub(super) memory: Metered,
}

impl Counts {
    pub(super) fn of(status: Status, at_ms: u64) -> Self {
        Self {
            at_ms,
            covered_ms: status.uptime_ms,
            usage: status.usage_by_service,
            memory: status.memory.unwrap_or_default().metered,
        }
    }

    /// The counts after `earlier`. Amounts at a moment, and the peak, stay as they are.
    ///
    /// Errors: the server has started after `earlier`.
    pub(super) fn since(mut self, earlier: &Self) -> anyhow::Result<Self> {
        let passed = self.at_ms.checked_sub(earlier.at_ms);
        let covered = passed.filter(|passed| *passed <= self.covered_ms);
        ensure!(
            covered.is_some(),
            "the server has started after the earlier figures; `landfast cost` without --since shows all since then"
        );
        self.covered_ms = covered.unwrap_or_default();
        for (service, usage) in &mut self.usage {
            let before = earlier.usage.get(service).map_or(&[][..], Vec::as_slice);
            for line in usage {
                let same = |other: &&Usage| other.operation == line.operation;
                let Some(before) = before.iter().find(same) else {
                    continue;
                };
                less(&mut line.calls, before.calls);
                less(&mut line.failures, before.failures);
                less(&mut line.items, before.items);
                less(&mut line.bytes, before.bytes);
            }
        }
        let (memory, before) = (&mut self.memory, &earlier.memory);
        for (invocations, before) in [
            (&mut memory.io, before.io),
            (&mut memory.warm_up, before.warm_up),
            (&mut memory.recovery, before.recovery),
        ] {
            less(&mut invocations.count, before.count);
            less(&mut invocations.bytes, before.bytes);
        }
        less(
            &mut memory.running_byte_seconds,
            before.running_byte_seconds,
        );
        less(&mut memory.stored_byte_seconds, before.stored_byte_seconds);
        Ok(self)
    }

    pub(super) fn hours(&self) -> f64 {
        self.covered_ms as f64 / 3_600_000.0
    }
}

fn less(count: &mut u64, before: u64) {
    *count = count.saturating_sub(before);
}

/// An amount of one unit, and its price.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Charge {
    pub(super) service: String,
    pub(super) category: &'static str,
    pub(super) unit: &'static str,
    pub(super) amount: f64,
    usd_each: f64,
    pub(super) usd: f64,
}

/// The charges for `counts`. Units that were not used are left out.
pub(super) fn charges(counts: &Counts, book: &PriceBook) -> Vec<Charge> {
    let mut charges = function_memory(&counts.memory, book);
    for (service, usage) in &counts.usage {
        charges.extend(ports(service, usage, book));
    }
    charges.retain(|charge| charge.amount > 0.0);
    charges.sort_by(|one, other| one.service.cmp(&other.service));
    charges
}

/// A charge for `amount` units.
fn charge(
    service: &str,
    category: &'static str,
    unit: &'static str,
    amount: f64,
    price: &Price,
) -> Charge {
    Charge {
        service: service.to_owned(),
        category,
        unit,
        amount,
        usd_each: price.usd,
        usd: amount * price.usd,
    }
}

fn function_memory(memory: &Metered, book: &PriceBook) -> Vec<Charge> {
    let model = &book.invocation;
    let billed_seconds = |invocations: Invocations| {
        let each = invocations.count as f64 * model.fixed_ms / 1000.0;
        each + invocations.bytes as f64 / model.transfer_bytes_per_second
    };
    let instance_gb = memory.instance_bytes as f64 / GIB;
    let categories = [
        ("I/O", memory.io),
        ("warm-up", memory.warm_up),
        ("recovery", memory.recovery),
    ];
    let mut charges = Vec::new();
    for (category, invocations) in categories {
        let (count, gb_s) = (
            invocations.count as f64,
            billed_seconds(invocations) * instance_gb,
        );
        let prices = &book.prices;
        charges.push(charge(
            "memory",
            category,
            "invocations",
            count,
            &prices.lambda_request,
        ));
        charges.push(charge(
            "memory",
            category,
            "GB-seconds",
            gb_s,
            &prices.lambda_gb_second,
        ));
    }
    let gb_months = memory.stored_byte_seconds as f64 / GIB / 3600.0 / HOURS_PER_MONTH;
    charges.push(charge(
        "memory",
        OBJECT_STORE,
        "GB-months",
        gb_months,
        &book.prices.s3_gb_month,
    ));
    charges
}

pub(super) const OBJECT_STORE: &str = "object store";

/// The charges for calls of metered ports. Items have the mean size of their calls.
fn ports(service: &str, usage: &[Usage], book: &PriceBook) -> Vec<Charge> {
    let (mut puts, mut gets, mut queue, mut runs) = (0, 0, 0, 0);
    let (mut read_units, mut write_units) = (0, 0);
    for line in usage {
        match line.operation.as_str() {
            "key_value.get" | "key_value.scan" => {
                read_units += line.calls.max(line.bytes.div_ceil(READ_UNIT_BYTES));
            }
            "key_value.update" => {
                write_units += line.calls.max(line.bytes.div_ceil(WRITE_UNIT_BYTES));
            }
            "key_value.transact" => {
                let items = line.items.max(line.calls);
                write_units += 2 * items.max(line.bytes.div_ceil(WRITE_UNIT_BYTES));
            }
            "objects.put" | "objects.list" => puts += line.calls,
            "objects.get" => gets += line.calls,
            "functions.run" => runs += line.calls,
            operation if operation.starts_with("queue.") => queue += line.calls,
            // An externalize and an objects.delete are free. Invocations are billed as runs.
            _ => {}
        }
    }
    let prices = &book.prices;
    let of =
        |category, unit, amount: u64, price| charge(service, category, unit, amount as f64, price);
    vec![
        of(OBJECT_STORE, "puts and lists", puts, &prices.s3_put),
        of(OBJECT_STORE, "gets", gets, &prices.s3_get),
        of(
            "items",
            "read units",
            read_units,
            &prices.dynamodb_read_unit,
        ),
        of(
            "items",
            "write units",
            write_units,
            &prices.dynamodb_write_unit,
        ),
        of("queues", "requests", queue, &prices.sqs_request),
        of("functions", "invocations", runs, &prices.lambda_request),
    ]
}

/// The cost of the charges that `is_meant` selects.
pub(super) fn sum(charges: &[Charge], is_meant: impl Fn(&Charge) -> bool) -> f64 {
    charges
        .iter()
        .filter(|charge| is_meant(charge))
        .map(|charge| charge.usd)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(operation: &str, calls: u64, items: u64, bytes: u64) -> Usage {
        Usage {
            operation: operation.to_owned(),
            calls,
            items,
            bytes,
            ..Usage::default()
        }
    }

    fn amount(charges: &[Charge], category: &str, unit: &str) -> f64 {
        let mut found = charges
            .iter()
            .filter(|charge| (charge.category, charge.unit) == (category, unit));
        found.next().map_or(0.0, |charge| charge.amount)
    }

    #[test]
    fn billed_time_is_that_of_invocations_and_of_their_bytes() {
        let book = PriceBook::aws().expect("a price book");
        let memory = Metered {
            io: Invocations {
                count: 1000,
                bytes: 160_000_000,
            },
            instance_bytes: 512 << 20,
            ..Metered::default()
        };
        let charges = function_memory(&memory, &book);
        // 1,000 times 2 ms, and 2 s of transfer, of half a GB.
        assert!((amount(&charges, "I/O", "GB-seconds") - 2.0).abs() < 1e-9);
        assert!(
            (sum(&charges, |_| true) - (1000.0 * 0.000_000_2 + 2.0 * 0.000_016_666_7)).abs()
                < 1e-12
        );
    }

    #[test]
    fn units_of_items_are_by_calls_or_by_bytes() {
        let book = PriceBook::aws().expect("a price book");
        let lines = [
            usage("key_value.get", 10, 10, 100),
            usage("key_value.scan", 1, 50, 4096 * 3 + 1),
            usage("key_value.update", 3, 3, 10_240),
            usage("key_value.transact", 2, 7, 70),
            usage("externalize", 99, 0, 0),
            usage("objects.delete", 99, 0, 0),
        ];
        let charges = ports("s", &lines, &book);
        assert_eq!(amount(&charges, "items", "read units") as u64, 14);
        assert_eq!(amount(&charges, "items", "write units") as u64, 24);
        assert_eq!(amount(&charges, OBJECT_STORE, "puts and lists") as u64, 0);
    }

    #[test]
    fn counts_since_earlier_ones_are_the_difference_unless_the_server_started_again() {
        let counts = |at_ms, covered_ms, calls| Counts {
            at_ms,
            covered_ms,
            usage: [("s".to_owned(), vec![usage("objects.put", calls, 0, 0)])].into(),
            memory: Metered::default(),
        };
        let earlier = counts(1000, 900, 5);
        let since = counts(1500, 1400, 8).since(&earlier).expect("one start");
        assert_eq!((since.covered_ms, since.usage["s"][0].calls), (500, 3));
        assert!(counts(1500, 499, 8).since(&earlier).is_err());
    }
}
