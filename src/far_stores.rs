//! Far stores of workflows: which addresses are valid, and how a store is opened.
//!
//! The name of a far store is its address without credentials. So an address has no options: they
//! would become part of the name, in lower case. Stored data refers to that name, so it never
//! changes. Different spellings of one address would be different far stores, so all but one are
//! refused.

use std::net::Ipv6Addr;

use async_trait::async_trait;
use ports::key_value::SharedKeyValue;

/// Why an address is not valid for a far store. A cluster is refused because no far store was
/// tested on one.
pub(crate) fn check(address: &str) -> Result<(), String> {
    if address.contains('?') {
        let why = "a far store's address has no options: leave out what begins with `?`";
        return Err(why.to_owned());
    }
    let config = redis_provider::Config::from_url(address).map_err(|error| error.to_string())?;
    check_spelling(address)?;
    if config.topology != redis_provider::Topology::Single {
        let why = "a far store is one Redis or Valkey server, redis://HOST:PORT, and no cluster";
        return Err(why.to_owned());
    }
    Ok(())
}

/// Errors: the same address in another spelling. It would be another far store by name, and
/// workflows would not share their state.
fn check_spelling(address: &str) -> Result<(), String> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    if let Some(found) = place.chars().find(|sign| matches!(sign, '#' | ',')) {
        return Err(format!(
            "a far store's address has no `{found}`: it is redis://HOST:PORT, or with /DATABASE"
        ));
    }
    let (host, database) = place.split_once('/').unwrap_or((place, ""));
    // The colons of an IPv6 address are in brackets.
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| !port.ends_with(']'));
    if port.is_some_and(|port| port == "0" || !is_plain(port)) {
        let why = "the port of a far store is a number from 1 on, without zeros before it";
        return Err(why.to_owned());
    }
    // The default port is part of the name only after a plain host name.
    if port.is_none() && (host.starts_with('[') || !matches!(database, "" | "0")) {
        return Err(format!(
            "a far store with a database, or at an IPv6 address, is named with its port: {host}:6379 if it has no other"
        ));
    }
    let in_brackets = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    if let Some((address, _)) = in_brackets
        && let Ok(parsed) = address.parse::<Ipv6Addr>()
        && !parsed.to_string().eq_ignore_ascii_case(address)
    {
        return Err(format!(
            "write the IPv6 address of the far store as [{parsed}]"
        ));
    }
    if !database.is_empty() && !is_plain(database) {
        let why = "the database of a far store is a number from 0 on, without zeros before it";
        return Err(why.to_owned());
    }
    Ok(())
}

/// Whether a number is in its usual spelling.
fn is_plain(number: &str) -> bool {
    let is_digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_digits && (number == "0" || !number.starts_with('0'))
}

#[derive(Debug)]
pub(crate) struct RedisStores;

#[async_trait]
impl workflows::FarStores for RedisStores {
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue> {
        let wrong =
            |error| ports::Error::invalid("read the address of a far store").caused_by(error);
        let config = redis_provider::Config::from_url(address).map_err(wrong)?;
        let unavailable = |error| ports::Error::unavailable("open a far store").caused_by(error);
        let store = redis_provider::Redis::open(&config).await;
        Ok(store.map_err(unavailable)?.key_value())
    }
}

#[cfg(test)]
mod tests {
    use functions::manifest::workflow::place_of;

    use super::check;

    #[test]
    fn a_far_store_has_one_spelling() {
        for (good, place) in [
            ("redis://h", "redis://h:6379"),
            ("redis://h/0", "redis://h:6379"),
            ("redis://H/", "redis://h:6379"),
            ("redis://h:1", "redis://h:1"),
            ("redis://h:6379/3", "redis://h:6379/3"),
            ("redis://u:p@h:6379/0", "redis://h:6379"),
            ("redis://[::1]:6379/12", "redis://[::1]:6379/12"),
        ] {
            assert_eq!(
                (check(good), place_of(good).as_str()),
                (Ok(()), place),
                "{good}"
            );
        }
        for odd in [
            "redis://h:1#x",
            "redis://h:",
            "redis://h:/3",
            "redis://h/3",
            "redis://[::1]",
            "redis://[::1]:",
            "redis://[::1]/3",
            "redis://[0:0::1]:6379",
            "redis://h:01",
            "redis://h:0",
            "redis://h:1/00",
            "redis://h:1/01",
            "redis://h:1/-1",
            "redis://h,g",
            "redis://h:1,g:2",
            "redis://h:1?a=b",
        ] {
            assert!(check(odd).is_err(), "{odd}");
        }
    }
}
