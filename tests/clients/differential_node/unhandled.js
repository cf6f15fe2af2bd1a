Promise.reject(new RangeError("at the import")); exports.handler = async () => 1;
