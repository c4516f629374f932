# The loop devices of the cluster: the disks of its nodes, what hostloop attached of the files on them, and what
# kubelet attached on top of that. They are the kernel's and outlive every namespace.
#
# None is told by its path, which may be one of a mount namespace that is gone, but by the device and inode of what
# is behind it: a file of the state directory, or anything on or behind a device that is one of these already.
# shellcheck shell=bash

# "device-name major:minor inode-of-backing-file major:minor-of-its-filesystem", one a line, for all of the machine.
all_loop_devices() {
  # losetup pads the numbers, and writes the spaces as codes.
  losetup --list --noheadings --raw --output NAME,MAJ:MIN,BACK-INO,BACK-MAJ:MIN | sed 's/\\x20//g'
}

# "inode major:minor" of the disks of a node, or of all nodes.
disk_files() {
  local file device
  for file in "$state"/${1:-node*}/*.img; do
    [[ -e $file ]] || continue
    device=$(stat -c %Hd:%Ld "$file")
    printf '%s %s\n' "$(stat -c %i "$file")" "$device"
  done
}

# The names of a node's loop devices, or of all of the cluster's, the topmost first.
cluster_loop_devices() {
  local devices files found='' name number inode filesystem more=true
  devices=$(all_loop_devices)
  files=$(disk_files "$@")
  while $more; do
    more=false
    while read -r name number inode filesystem; do
      [[ -n $name && $'\n'$found != *$'\n'"$name"$'\n'* ]] || continue
      grep -qxF -e "$inode $filesystem" -e "on $filesystem" <<<"$files" || continue
      found=$name$'\n'$found
      # A file on this disk has the disk as its filesystem; what is attached on the disk itself has its device node.
      files+=$'\n'"on $number"$'\n'$(stat -c '%i %Hd:%Ld' "$name" 2>/dev/null || true)
      more=true
    done <<<"$devices"
  done
  printf '%s' "$found"
}

detach_disks() {
  local left deadline=$((SECONDS + 20)) device
  while left=$(cluster_loop_devices "$@") && [[ -n $left ]]; do
    ((SECONDS < deadline)) || die "these loop devices do not go away: $(tr '\n' ' ' <<<"$left")"
    for device in $left; do
      losetup --detach "$device" 2>/dev/null || true
    done
    sleep 0.1
  done
}
