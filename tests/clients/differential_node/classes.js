module.exports = class { static async handler() { return [typeof this, new this() instanceof this]; } };
