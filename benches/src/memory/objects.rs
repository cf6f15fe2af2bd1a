//! The objects of a run, and their content.

use std::{fmt, str::FromStr};

use fastrand::Rng;

/// The distance of two objects' content in the block. It is odd, so that no two objects agree in
/// their alignment.
const CONTENT_STEP_BYTES: usize = 4_099;
/// The longest object: a block in memory holds its content.
const OBJECT_BYTES_MAX: usize = 512_000_000;
const OBJECTS_MAX: usize = 100_000;

/// Objects of one size; written `1MBx500`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects {
    /// The length of each.
    pub bytes: usize,
    /// How many there are.
    pub count: usize,
}

impl Objects {
    /// The key of object `index`.
    pub fn key(index: usize) -> String {
        format!("object-{index:06}")
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&size(self.bytes))
    }
}

/// A length as a person writes it.
pub fn size(bytes: usize) -> String {
    if bytes.is_multiple_of(1_000_000) {
        format!("{} MB", bytes / 1_000_000)
    } else {
        format!("{} KiB", bytes / 1_024)
    }
}

impl FromStr for Objects {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?}: write a size and a number of objects, such as 4KiBx5000 or 10MBx50")
        };
        let (size, count) = text.split_once('x').ok_or_else(wrong)?;
        let (digits, unit) = match (size.strip_suffix("KiB"), size.strip_suffix("MB")) {
            (Some(digits), _) => (digits, 1_024),
            (None, Some(digits)) => (digits, 1_000_000),
            (None, None) => return Err(wrong()),
        };
        let size: usize = digits.parse().map_err(|_| wrong())?;
        let bytes = size.checked_mul(unit).ok_or_else(wrong)?;
        let count = count.parse().map_err(|_| wrong())?;
        if !(1..=OBJECT_BYTES_MAX).contains(&bytes) || !(1..=OBJECTS_MAX).contains(&count) {
            return Err(format!(
                "{text:?}: up to {OBJECTS_MAX} objects of up to {OBJECT_BYTES_MAX} bytes"
            ));
        }
        Ok(Self { bytes, count })
    }
}

/// The content of all objects of one size.
#[derive(Debug)]
pub struct Content {
    block: Vec<u8>,
    objects: Objects,
}

impl Content {
    /// Random content; the same for the same seed.
    pub fn new(objects: Objects, seed: u64) -> Self {
        let mut block = vec![0; objects.bytes + objects.count * CONTENT_STEP_BYTES];
        Rng::with_seed(seed).fill(&mut block);
        Self { block, objects }
    }

    /// The content of object `index`.
    pub fn of(&self, index: usize) -> &[u8] {
        &self.block[index * CONTENT_STEP_BYTES..][..self.objects.bytes]
    }

    /// The objects.
    pub fn objects(&self) -> Objects {
        self.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_shown() {
        let objects: Objects = "10MBx50".parse().expect("objects");
        assert_eq!((objects.bytes, objects.count), (10_000_000, 50));
        assert_eq!(objects.to_string(), "10 MB");
        let objects: Objects = "4KiBx7".parse().expect("objects");
        assert_eq!((objects.bytes, objects.count), (4_096, 7));
        assert_eq!(objects.to_string(), "4 KiB");
        for wrong in ["", "4KiB", "4x4", "0MBx1", "1MBx0", "1MBx-1", "9999MBx1"] {
            assert!(wrong.parse::<Objects>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_object_has_content_of_its_own() {
        let objects = Objects {
            bytes: 64,
            count: 3,
        };
        let content = Content::new(objects, 1);
        assert_eq!(content.of(2).len(), 64);
        assert_ne!(content.of(1), content.of(2));
        assert_eq!(content.of(2), Content::new(objects, 1).of(2));
    }
}
