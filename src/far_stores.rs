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
    if config.topology != redis_provider::Topology::Single {
        return Err("a far store is one Redis or Valkey server, redis://HOST:PORT, and no cluster".to_owned());
    }
    Ok(())
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
