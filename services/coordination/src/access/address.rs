//! Addresses in ACLs, with or without a number of leading bits that must match.
//!
//! The texts that are valid are those of ZooKeeper's `IPAuthenticationProvider`.

use core::net::Ipv6Addr;

/// Whether the peer's address `id` is among those of `pattern`, such as `10.1.0.0/16`.
pub(super) fn matches(id: &str, pattern: &str) -> bool {
    let (Some((address, bits)), Some((peer, _))) = (parse(pattern), parse(id)) else {
        return false;
    };
    let ignored = address.width - bits;
    let leading = |address: &Address| address.value.checked_shr(ignored).unwrap_or(0);
    peer.width == address.width && leading(&peer) == leading(&address)
}

pub(super) fn is_valid(pattern: &str) -> bool {
    parse(pattern).is_some()
}

struct Address {
    value: u128,
    /// 32 or 128 bits.
    width: u32,
}

/// The address, and how many of its leading bits count.
fn parse(pattern: &str) -> Option<(Address, u32)> {
    let (text, bits) = match pattern.split_once('/') {
        Some((text, bits)) => (text, Some(bits)),
        None => (pattern, None),
    };
    let address = if text.contains(':') {
        version_six(text)?
    } else {
        version_four(text)?
    };
    let bits = bits.map_or(Some(address.width), |bits| bits.parse().ok())?;
    (bits <= address.width).then_some((address, bits))
}

fn version_six(text: &str) -> Option<Address> {
    let address: Ipv6Addr = text.parse().ok()?;
    // ZooKeeper knows no address of version 4 within one of version 6.
    (!text.contains('.')).then_some(Address {
        value: address.to_bits(),
        width: 128,
    })
}

/// Unlike Rust's, with zeros in front of a number.
fn version_four(text: &str) -> Option<Address> {
    let mut value = 0;
    let mut parts = text.split('.');
    for _ in 0..4 {
        value = value << 8 | u128::from(parts.next()?.parse::<u8>().ok()?);
    }
    let address = Address { value, width: 32 };
    parts.next().is_none().then_some(address)
}
