exports.handler = (;
