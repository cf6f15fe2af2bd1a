//! Price books: the prices of billing units, as dated data.

use std::{fmt, iter::Sum, ops::Add};

use serde::{Deserialize, Deserializer, de};

use super::{Operation, UnitBytes, Usage};

/// An amount in millionths of a millionth of the book's currency. It holds every published price
/// exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(pub u128);

impl Money {
    /// How many of them make one dollar.
    const ONE: u128 = 1_000_000_000_000;
    /// How many digits they give a dollar.
    const DIGITS: usize = 12;

    /// The amount that `decimal` writes, such as `0.0000166667`; none if it is not one.
    pub fn parse(decimal: &str) -> Option<Self> {
        let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > Self::DIGITS
        {
            return None;
        }
        let fraction: u128 = format!("{fraction:0<width$}", width = Self::DIGITS)
            .parse()
            .ok()?;
        whole
            .parse::<u128>()
            .ok()?
            .checked_mul(Self::ONE)?
            .checked_add(fraction)
            .map(Self)
    }
}

impl fmt::Display for Money {
    /// As a decimal number, without needless zeros: `0.0000025`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:012}", self.0 % Self::ONE);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / Self::ONE),
            fraction => write!(f, "{}.{fraction}", self.0 / Self::ONE),
        }
    }
}

impl Add for Money {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0 + rhs.0)
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| de::Error::custom(format!("{text:?} is not an amount of money")))
    }
}

/// One line of a price book.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The billed thing, in the provider's words.
    pub unit: String,
    /// Bytes that one unit covers; zero where size does not matter.
    pub unit_bytes: u64,
    /// The price of `per` units.
    pub amount: Money,
    /// The number of units that `price` buys. Not zero.
    pub per: u64,
    /// The source of the figure.
    pub source: String,
}

impl Price {
    /// The price of `units`, rounded down to the smallest amount.
    fn of(&self, units: u64) -> Money {
        self.fraction(u128::from(units), 1)
    }

    /// The price of `units / divisor` units.
    fn fraction(&self, units: u128, divisor: u128) -> Money {
        Money(self.amount.0 * units / (u128::from(self.per) * divisor))
    }
}

/// Why a price book cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// It is not a price book.
    #[error("malformed price book")]
    Malformed(#[from] toml::de::Error),
    /// A price for zero units.
    #[error("the price of {0:?} is per zero units")]
    PerZero(String),
}

/// The prices of one provider in one region, as of some date.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceBook {
    /// The provider.
    pub provider: String,
    /// The region.
    pub region: String,
    /// The currency.
    pub currency: String,
    /// The date: year, month and day.
    pub date: String,
    /// Reads, per [`UnitBytes::read`] of an item.
    pub key_value_read: Price,
    /// Writes, per [`UnitBytes::write`] of an item.
    pub key_value_write: Price,
    /// Queue requests, per [`UnitBytes::message`].
    pub queue_request: Price,
    /// Runs of functions.
    pub function_request: Price,
    /// Gigabyte-seconds of functions.
    pub function_compute: Price,
    /// Requests that write, copy or list objects.
    pub object_write: Price,
    /// Requests that read objects.
    pub object_read: Price,
    /// Gigabyte-months in the key-value store.
    pub key_value_storage: Price,
    /// Gigabyte-months of objects.
    pub object_storage: Price,
}

/// The stored bytes, for [`PriceBook::storage_month`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredBytes {
    /// Bytes in the key-value store.
    pub key_value: u64,
    /// Bytes in objects.
    pub objects: u64,
}

impl PriceBook {
    /// AWS in us-east-1, with the figures of the paper's table 4.
    pub fn aws_us_east_1() -> Self {
        Self::parse(include_str!("../../prices/aws-us-east-1.toml"))
            .expect("the book we ship is tested")
    }

    /// Parses a price book.
    pub fn parse(text: &str) -> Result<Self, BookError> {
        let book: Self = toml::from_str(text)?;
        if let Some(price) = book.prices().into_iter().find(|price| price.per == 0) {
            return Err(BookError::PerZero(price.unit.clone()));
        }
        Ok(book)
    }

    fn prices(&self) -> [&Price; 9] {
        [
            &self.key_value_read,
            &self.key_value_write,
            &self.queue_request,
            &self.function_request,
            &self.function_compute,
            &self.object_write,
            &self.object_read,
            &self.key_value_storage,
            &self.object_storage,
        ]
    }

    /// The units in which a [`Meter`](super::Meter) must count for this book.
    pub fn unit_bytes(&self) -> UnitBytes {
        UnitBytes {
            read: self.key_value_read.unit_bytes,
            write: self.key_value_write.unit_bytes,
            message: self.queue_request.unit_bytes,
        }
    }

    /// The price of `usage`, counted by a meter in [`PriceBook::unit_bytes`].
    pub fn price(&self, usage: &Usage) -> Bill {
        let units = |operations: &[Operation]| {
            operations
                .iter()
                .map(|operation| usage.of(*operation).units)
                .sum()
        };
        Bill {
            key_value_reads: self
                .key_value_read
                .of(units(&[Operation::KeyValueGet, Operation::KeyValueScan])),
            key_value_writes: self.key_value_write.of(units(&[
                Operation::KeyValueUpdate,
                Operation::KeyValueTransact,
                Operation::KeyValueWriteBatch,
            ])),
            queue_requests: self.queue_request.of(units(&[
                Operation::QueueSend,
                Operation::QueueReceive,
                Operation::QueueReady,
                Operation::QueueAcknowledge,
                Operation::QueueRelease,
                Operation::QueueExtend,
                Operation::QueueDeadLetters,
                Operation::QueueRedrive,
                Operation::QueuePurge,
                Operation::QueueBlocked,
                Operation::QueueBacklog,
            ])),
            function_requests: self.function_request.of(units(&[Operation::FunctionRun])),
            function_compute: self
                .function_compute
                .fraction(u128::from(usage.compute_mb_ms), 1024 * 1000),
            object_writes: self.object_write.of(units(&[
                Operation::ObjectPut,
                Operation::ObjectList,
                Operation::ObjectCopy,
            ])),
            object_reads: self.object_read.of(units(&[Operation::ObjectGet])),
        }
    }

    /// The price of keeping `stored` for a month.
    pub fn storage_month(&self, stored: StoredBytes) -> Money {
        /// A gigabyte as clouds bill it.
        const GIGABYTE: u128 = 1 << 30;
        self.key_value_storage
            .fraction(u128::from(stored.key_value), GIGABYTE)
            + self
                .object_storage
                .fraction(u128::from(stored.objects), GIGABYTE)
    }
}

/// The price of a usage, by the billed thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bill {
    /// Gets and scans.
    pub key_value_reads: Money,
    /// Updates, transactions and batches.
    pub key_value_writes: Money,
    /// All requests to queues.
    pub queue_requests: Money,
    /// Runs of functions.
    pub function_requests: Money,
    /// The memory and time they took.
    pub function_compute: Money,
    /// Puts, copies and lists.
    pub object_writes: Money,
    /// Gets.
    pub object_reads: Money,
}

impl Bill {
    /// Its lines with their names in metrics.
    pub fn lines(&self) -> [(&'static str, Money); 7] {
        [
            ("key_value_reads", self.key_value_reads),
            ("key_value_writes", self.key_value_writes),
            ("queue_requests", self.queue_requests),
            ("function_requests", self.function_requests),
            ("function_compute", self.function_compute),
            ("object_writes", self.object_writes),
            ("object_reads", self.object_reads),
        ]
    }

    /// Their sum.
    pub fn total(&self) -> Money {
        self.lines().into_iter().map(|(_, amount)| amount).sum()
    }
}
