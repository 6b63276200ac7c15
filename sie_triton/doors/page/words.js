// Write figures as people read them.

export const UNKNOWN = "–";

const known = (write) => (value) => (Number.isFinite(value) ? write(value) : UNKNOWN);

export const count = known((value) => value.toLocaleString("en"));

export const rate = known((value) => (value >= 10 ? count(Math.round(value)) : value.toFixed(1)));

export const milliseconds = known((value) => {
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
});

export const bytes = known((value) => {
  const mib = value / 2 ** 20;
  return mib < 1000 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
});

export const duration = known((seconds) => {
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
});

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
