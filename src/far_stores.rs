//! Far stores of workflows: which addresses are one, and how it is opened.
//!
//! A far store is known by its place, which is its address without what is for that store alone. So an address has no options:
//! they would be part of that name, in lower case.

use async_trait::async_trait;
use ports::key_value::SharedKeyValue;

/// Why an address is none of a far store. A cluster is refused since no far store was ever tested on one.
pub(crate) fn check(address: &str) -> Result<(), String> {
    if address.contains('?') {
        return Err("a far store's address has no options: leave out what begins with `?`".to_owned());
    }
    let config = redis_provider::Config::from_url(address).map_err(|error| error.to_string())?;
    check_spelling(address)?;
    if config.topology != redis_provider::Topology::Single {
        return Err("a far store is one Redis or Valkey server, redis://HOST:PORT, and no cluster".to_owned());
    }
    Ok(())
}

/// Errors: one place spelled otherwise, which would be another far store by name: its workflows would not share their state.
fn check_spelling(address: &str) -> Result<(), String> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    if let Some(found) = place.chars().find(|sign| matches!(sign, '#' | ',')) {
        return Err(format!(
            "a far store's address has no `{found}`: it is redis://HOST:PORT, or with /DATABASE"
        ));
    }
    let (host, database) = place.split_once('/').unwrap_or((place, ""));
    // The colons of an IPv6 address stand in brackets.
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
    if port.is_some_and(|port| !is_plain(port) || port == "0") {
        return Err("the port of a far store is a number from 1 on, without zeros before it".to_owned());
    }
    if !database.is_empty() && !is_plain(database) {
        return Err("the database of a far store is a number from 0 on, without zeros before it".to_owned());
    }
    Ok(())
}

/// Whether a number is spelled as everybody does.
fn is_plain(number: &str) -> bool {
    number.bytes().all(|byte| byte.is_ascii_digit()) && (number == "0" || !number.starts_with('0'))
}

/// Far stores by their addresses: Redis and Valkey.
#[derive(Debug)]
pub(crate) struct RedisStores;

#[async_trait]
impl workflows::FarStores for RedisStores {
    async fn open(&self, address: &str) -> ports::Result<SharedKeyValue> {
        let wrong = |error| ports::Error::invalid("read the address of a far store").caused_by(error);
        let config = redis_provider::Config::from_url(address).map_err(wrong)?;
        let unavailable = |error| ports::Error::unavailable("open a far store").caused_by(error);
        Ok(redis_provider::Redis::open(&config).await.map_err(unavailable)?.key_value())
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_far_store_has_one_spelling() {
        for good in
            ["redis://h", "redis://h:1", "redis://u:p@h:6379/0", "redis://[::1]:6379/12", "redis://h/3"]
        {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for odd in [
            "redis://h:1#x",
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
